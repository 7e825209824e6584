// Products of a few rows with packed weights.
#include "linear_mma.cuh"

PRODUCT(bf16_affine2, B16, AffineRow<2>)
PRODUCT(bf16_affine3, B16, AffineRow<3>)
PRODUCT(bf16_affine4, B16, AffineRow<4>)
PRODUCT(bf16_affine5, B16, AffineRow<5>)
PRODUCT(bf16_affine6, B16, AffineRow<6>)
PRODUCT(bf16_affine8, B16, AffineRow<8>)
PRODUCT(bf16_mxfp4, B16, MxRow)
PRODUCT16(bf16_affine4, B16, AffineRow<4>)
GATED(bf16_affine4, B16, AffineRow<4>)
