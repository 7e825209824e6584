// Microsoft has the cheaper intrinsics here.
#pragma once

#include <intrin.h>
