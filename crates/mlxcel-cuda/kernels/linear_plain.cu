// Products of a few rows with weights of 16-bit numbers.
#include "linear_mma.cuh"

PRODUCT(bf16_plain, B16, PlainRow<B16>)
PRODUCT(f16_plain, H16, PlainRow<H16>)
PRODUCT16(bf16_plain, B16, PlainRow<B16>)
PRODUCT16(f16_plain, H16, PlainRow<H16>)
GATED(bf16_plain, B16, PlainRow<B16>)
