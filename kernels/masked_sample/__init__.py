"""Draw one token a row from masked logits, in one op: mask, temperature, cuts, draw.

The mathematics. With ``z = logit * float32(1 / temperature)`` in float32 and A the allowed tokens,

    min_p   keeps i when  z_i >= max(z over A) + float32(ln min_p)
    top_k   keeps i when  fewer than k of those are strictly greater
    top_p   keeps i when  float64(mass strictly above z_i) < top_p * float64(mass of those)
    token = argmax over what is kept of  z_i + g_i,   g = -log(-log1p(-v)),   v uniform

which draws i with probability exp(z_i) / sum of exp(z) over what is kept (the Gumbel-max trick:
Gumbel 1954; Maddison, Tarlow and Minka, NeurIPS 2014). The noise is a function of (seed, position,
stream, i) alone: see `kernels.gumbel`. Mass is counted in integers, tile by tile, so that no order
of adding changes it: see `reference.Mass`.

The contract.

* Draw. The token is the argmax above; equal scores go to the lowest id.
* Greedy. A temperature under 1e-5 is argmax of the allowed logits, the lowest id on ties.
* Mask. A forbidden logit never counts: it may be NaN, infinite, or not computed at all. Columns
  from ``vocab_size`` on and spare bits of the last word are never allowed. The mask comes before
  the cuts. Rows that ``constrained`` leaves out are free.
* Cuts. Order: min_p, top_k, top_p. The token that crosses p stays. Ties at a cut stay, all of them.
  p = 1, k = 0, k beyond the vocabulary and min_p = 0 are no cut.
* Batch invariance. Token, log-probability and status of a row are the same bits whatever the batch
  size, the slot, the neighbours, the row stride or the padding.
* Coupling. Without a cut, or at temperature 0, a constrained draw is the free draw of the same
  (seed, position, stream) whenever that token is allowed.
* Bad rows. Status, the highest that holds: BAD_PARAM, NAN (an allowed logit is NaN), POSINF, EMPTY
  (nothing allowed, or all of it -inf). Such a row raises nothing, disturbs no neighbour, has
  logprob NaN, and holds the lowest allowed id, else 0. That token must not be emitted.
* logprob. Of the token under the masked, temperature-scaled distribution before the cuts, to 1e-5
  nats; of temperature 1 when greedy.
* Implementations. All return the same tokens. One difference is legal: a top-p boundary within
  rounding of the mass. The torch path has none: it leaves such rows to the reference.

Bytes moved on the CPU path: a mask row once; the allowed logits of a sparse row once; a dense or
free row, or one of a few short sparse ones, once into a float32 copy of it.
"""

from kernels.masked_sample.api import masked_sample
from kernels.masked_sample.call import Sample, Stats, Status
from kernels.masked_sample.reference import masked_sample_reference

__all__ = ["Sample", "Stats", "Status", "masked_sample", "masked_sample_reference"]
