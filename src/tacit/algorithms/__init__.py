"""One file per algorithm, silo half and server half side by side. Nothing here sees a record.

The functions are `tacit.mb_sgd` and so on; `tacit.plans.catalogue` is the table of all.
"""
