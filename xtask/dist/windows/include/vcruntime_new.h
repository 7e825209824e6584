// Allocation: the operators that startup.cpp defines, and those that place.
#pragma once

#include <vcruntime.h>

namespace std {
struct nothrow_t {
  explicit nothrow_t() = default;
};
extern nothrow_t const nothrow;
enum class align_val_t : size_t {};
}  // namespace std

void* __cdecl operator new(size_t);
void* __cdecl operator new[](size_t);
void* __cdecl operator new(size_t, std::nothrow_t const&) noexcept;
void* __cdecl operator new[](size_t, std::nothrow_t const&) noexcept;
void* __cdecl operator new(size_t, std::align_val_t);
void* __cdecl operator new[](size_t, std::align_val_t);
void __cdecl operator delete(void*) noexcept;
void __cdecl operator delete[](void*) noexcept;
void __cdecl operator delete(void*, size_t) noexcept;
void __cdecl operator delete[](void*, size_t) noexcept;
void __cdecl operator delete(void*, std::nothrow_t const&) noexcept;
void __cdecl operator delete[](void*, std::nothrow_t const&) noexcept;
void __cdecl operator delete(void*, std::align_val_t) noexcept;
void __cdecl operator delete[](void*, std::align_val_t) noexcept;
void __cdecl operator delete(void*, size_t, std::align_val_t) noexcept;
void __cdecl operator delete[](void*, size_t, std::align_val_t) noexcept;

// Others define these only where nobody has said so.
#define __PLACEMENT_NEW_INLINE
#define __PLACEMENT_VEC_NEW_INLINE
constexpr inline void* __cdecl operator new(size_t, void* place) noexcept { return place; }
constexpr inline void* __cdecl operator new[](size_t, void* place) noexcept { return place; }
constexpr inline void __cdecl operator delete(void*, void*) noexcept {}
constexpr inline void __cdecl operator delete[](void*, void*) noexcept {}
