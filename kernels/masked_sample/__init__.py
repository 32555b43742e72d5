"""masked_sample"""

from kernels.masked_sample.api import masked_sample
from kernels.masked_sample.call import Sample, Stats, Status
from kernels.masked_sample.reference import masked_sample_reference

__all__ = ["Sample", "Stats", "Status", "masked_sample", "masked_sample_reference"]
