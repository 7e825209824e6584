// Clang's intrinsics, of which MinGW declares one otherwise.
#pragma once

#include <setjmp.h>
#define __intrinsic_setjmpex mlxcel_no_setjmpex
#include_next <intrin.h>
#undef __intrinsic_setjmpex
