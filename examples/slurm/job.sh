#!/bin/bash
#SBATCH --job-name=tacit
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:10:00
# The silos (64) must divide evenly among the devices of all nodes.
srun python simulation.py
