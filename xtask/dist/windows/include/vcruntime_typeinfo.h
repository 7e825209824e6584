// Descriptions of types, which the compiler writes: a table of functions, a place for a readable name, and the name.
#pragma once

#include <vcruntime_exception.h>

struct __std_type_info_data {
  char const* _UndecoratedName;
  char const _DecoratedName[1];
};

extern "C" {
_VCRTIMP int __cdecl __std_type_info_compare(__std_type_info_data const*, __std_type_info_data const*);
_VCRTIMP size_t __cdecl __std_type_info_hash(__std_type_info_data const*);
}

class type_info {
 public:
  type_info(type_info const&) = delete;
  type_info& operator=(type_info const&) = delete;
  virtual ~type_info() noexcept;
  size_t hash_code() const noexcept { return __std_type_info_hash(&data); }
  bool operator==(type_info const& other) const noexcept { return __std_type_info_compare(&data, &other.data) == 0; }
  bool before(type_info const& other) const noexcept { return __std_type_info_compare(&data, &other.data) < 0; }
  char const* name() const noexcept { return data._DecoratedName; }
  char const* raw_name() const noexcept { return data._DecoratedName; }

 private:
  mutable __std_type_info_data data;
};

namespace std {

using ::type_info;

class bad_cast : public exception {
 public:
  bad_cast() noexcept : exception("bad cast", 1) {}
};

class bad_typeid : public exception {
 public:
  bad_typeid() noexcept : exception("bad typeid", 1) {}
};

}  // namespace std
