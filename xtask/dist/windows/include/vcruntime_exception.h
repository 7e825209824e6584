// The exceptions at the root of all. Their layout is the runtime's: a table of functions, a text, and whether it is owned.
#pragma once

#include <eh.h>
#include <vcruntime.h>

struct __std_exception_data {
  char const* _What;
  bool _DoFree;
};

extern "C" {
_VCRTIMP void __cdecl __std_exception_copy(__std_exception_data const*, __std_exception_data*);
_VCRTIMP void __cdecl __std_exception_destroy(__std_exception_data*);
}

namespace std {

class exception {
 public:
  exception() noexcept : data() {}
  explicit exception(char const* what) noexcept : data() {
    __std_exception_data given = {what, true};
    __std_exception_copy(&given, &data);
  }
  // The second says that the text stays where it is.
  exception(char const* what, int) noexcept : data() { data._What = what; }
  exception(exception const& other) noexcept : data() { __std_exception_copy(&other.data, &data); }
  exception& operator=(exception const& other) noexcept {
    if (this == &other) return *this;
    __std_exception_destroy(&data);
    __std_exception_copy(&other.data, &data);
    return *this;
  }
  virtual ~exception() noexcept { __std_exception_destroy(&data); }
  virtual char const* what() const { return data._What ? data._What : "an exception without a text"; }

 private:
  __std_exception_data data;
};

class bad_exception : public exception {
 public:
  bad_exception() noexcept : exception("bad exception", 1) {}
};

class bad_alloc : public exception {
 public:
  bad_alloc() noexcept : exception("bad allocation", 1) {}

 private:
  friend class bad_array_new_length;
  bad_alloc(char const* what) noexcept : exception(what, 1) {}
};

class bad_array_new_length : public bad_alloc {
 public:
  bad_array_new_length() noexcept : bad_alloc("bad array new length") {}
};

}  // namespace std
