// What Microsoft's C++ library wants of the compiler's own headers, as far as the shim of the mlx engine needs it. Written
// from what the open library uses and from what the DLLs of the runtime export; the C library's headers are MinGW's.
#pragma once

#include <corecrt.h>
#include <sal.h>
#include <vadefs.h>

#define _HAS_CXX17 1
#define _HAS_CXX20 1
#define _HAS_CXX23 0
#define _HAS_EXCEPTIONS 1
#define _HAS_NODISCARD 1
#define _NODISCARD [[nodiscard]]
#define _MSVC_CONSTEXPR [[msvc::constexpr]]

#define _VCRTIMP __declspec(dllimport)
#define _ACRTIMP __declspec(dllimport)
#define _VCRT_ALLOCATOR __declspec(allocator)
#define _CRT_BEGIN_C_HEADER extern "C" {
#define _CRT_END_C_HEADER }
#define __CRTDECL __cdecl
#define __CLRCALL_OR_CDECL __cdecl
#define __CLRCALL_PURE_OR_CDECL __cdecl
#define __CLR_OR_THIS_CALL

// Words for other tools than a compiler, and for parts that Microsoft links otherwise.
#define _Deref_post_opt_valid_
#define _CRT_GUARDOVERFLOW
#define _CRT_SATELLITE_1
#define _CRT_SATELLITE_2
#define _CRT_SATELLITE_CODECVT_IDS
#define _CRT_SATELLITE_CODECVT_IDS_NOIMPORT

#ifndef _CRT_STRINGIZE
#define _CRT_STRINGIZE_(x) #x
#define _CRT_STRINGIZE(x) _CRT_STRINGIZE_(x)
#endif
#ifndef _CRT_WIDE
#define _CRT_WIDE_(text) L##text
#define _CRT_WIDE(text) _CRT_WIDE_(text)
#endif
#ifndef _CRT_CONCATENATE
#define _CRT_CONCATENATE_(a, b) a##b
#define _CRT_CONCATENATE(a, b) _CRT_CONCATENATE_(a, b)
#endif

extern "C" _ACRTIMP __declspec(noreturn) void __cdecl
_invoke_watson(wchar_t const*, wchar_t const*, wchar_t const*, unsigned int, uintptr_t);
