from .mean import weighted_mean as weighted_mean
from .shuffled_reports import MismatchError as MismatchError
from .shuffled_reports import ReportShuffler as ReportShuffler
from .shuffled_reports import digest as digest
from .shuffled_reports import mean_of_reports as mean_of_reports
from .shuffled_sum import SumShuffler as SumShuffler
from .shuffled_sum import TooFewError as TooFewError
from .shuffled_sum import mean_of_shares as mean_of_shares
