// How a process ends when nobody catches.
#pragma once

#include <vcruntime.h>

typedef void(__cdecl* terminate_handler)();
typedef void(__cdecl* unexpected_handler)();

extern "C" {
_ACRTIMP __declspec(noreturn) void __cdecl terminate() throw();
_ACRTIMP terminate_handler __cdecl set_terminate(terminate_handler) throw();
_ACRTIMP terminate_handler __cdecl _get_terminate();
_VCRTIMP bool __cdecl __uncaught_exception() throw();
_VCRTIMP int __cdecl __uncaught_exceptions() throw();
}

inline terminate_handler get_terminate() noexcept { return _get_terminate(); }
