// MinGW classifies numbers by macros; Microsoft's library expects functions, and overloads of `abs`.
#pragma once

#include_next <math.h>

#undef fpclassify
#undef signbit
#undef isfinite
#undef isinf
#undef isnan
#undef isnormal
#undef isgreater
#undef isgreaterequal
#undef isless
#undef islessequal
#undef islessgreater
#undef isunordered

#ifdef __cplusplus
#define MLXCEL_CLASSIFY(type)                                                                         \
  inline int fpclassify(type x) noexcept {                                                            \
    return __builtin_fpclassify(FP_NAN, FP_INFINITE, FP_NORMAL, FP_SUBNORMAL, FP_ZERO, x);            \
  }                                                                                                   \
  inline bool signbit(type x) noexcept { return __builtin_signbit(x); }

extern "C++" {
MLXCEL_CLASSIFY(float)
MLXCEL_CLASSIFY(double)
MLXCEL_CLASSIFY(long double)
inline long abs(long x) noexcept { return x < 0 ? -x : x; }
inline long long abs(long long x) noexcept { return x < 0 ? -x : x; }
}
#undef MLXCEL_CLASSIFY
#endif
