// The entries of abi.h: contexts, arrays, programs and steps. Compiled as one unit with the headers beside it.

#include "abi.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "interpret.h"

using namespace mlxcel;

struct mlxcel_context {
  Builder builder;
};

struct mlxcel_array {
  array value;
  // Whether a kernel of MLX wrote it.
  bool settled = false;
};

struct mlxcel_program {
  mlxcel_context* context;
  Arrays statics, states;
  // A step that failed while it ran may have used up states.
  std::string broken;
};

struct mlxcel_code {
  Code code;
};

namespace {

thread_local std::string error;

// A function of its own: in a handler, clang for Windows makes a trap of the check whether this thread has its string yet.
#if defined(_WIN32)
__declspec(noinline)
#endif
void keep(const char* reason) {
  error = reason;
}

// Runs f; whatever it throws becomes the error of this thread.
template <typename T, typename F>
T guarded(T failed, F&& f) noexcept {
  try {
    return f();
  } catch (const std::exception& e) {
    keep(e.what());
  } catch (...) {
    keep("an exception of an unknown kind");
  }
  return failed;
}

mx::Device device(int32_t kind) { return mx::Device(kind == 1 ? mx::Device::gpu : mx::Device::cpu); }

mx::Shape shape_of(const int64_t* shape, size_t rank) {
  mx::Shape out;
  for (size_t i = 0; i < rank; i++) {
    if (shape[i] < 0 || shape[i] > INT32_MAX) throw std::invalid_argument("an axis is too long for MLX");
    out.push_back(static_cast<int>(shape[i]));
  }
  return out;
}

// What comes from the host lies in managed memory, whose pages move to a GPU when a kernel first wants them: an embedding
// of which every step wants other rows took 20 ms of a prompt. What a kernel writes lies on the GPU from then on.
void settle(mlxcel_array& a, const Builder& b) {
  // Metal has one memory, and MLX keeps numbers by themselves in memory that both sides see.
  auto type = a.value.dtype();
  if (b.on_cpu() || !mx::cu::is_available() || a.settled || a.value.nbytes() <= 8 || type == mx::float64) return;
  mx::Dtype bits[] = {mx::uint8, mx::uint16, mx::uint32, mx::uint64};
  auto same = bits[std::countr_zero(mx::size_of(type))];
  auto copied = mx::view(mx::bitwise_or(mx::view(a.value, same, b.s), array(0, same), b.s), type, b.s);
  copied.eval();
  a.value = copied;
  a.settled = true;
  // What the host wrote would be kept for a later array of its size.
  mx::clear_cache();
}

// Has arrays computed. MLX notes that all it was given at once are done on the stream of one of them, and a GPU's takes no
// doubles, nor may those be given that are there already.
void start(const Arrays& arrays) {
  Arrays doubles, others;
  for (auto& a : arrays) {
    if (a.dtype() != mx::float64) others.push_back(a);
    else if (a.status() == array::Status::unscheduled) doubles.push_back(a);
  }
  if (!doubles.empty()) mx::async_eval(doubles);
  if (!others.empty()) mx::async_eval(others);
}

void check_whole(const mlxcel_program& p) {
  if (!p.broken.empty()) throw std::runtime_error("the states were lost when a step failed: " + p.broken);
}

Arrays arguments(const mlxcel_program& p, mlxcel_array* const* inputs, size_t count) {
  Arrays all = p.statics;
  all.insert(all.end(), p.states.begin(), p.states.end());
  for (size_t i = 0; i < count; i++) all.push_back(inputs[i]->value);
  return all;
}

} // namespace

uint32_t mlxcel_abi() { return MLXCEL_SHIM_ABI; }

const char* mlxcel_built_version() {
  static const std::string version = std::to_string(MLX_VERSION_MAJOR) + "." + std::to_string(MLX_VERSION_MINOR) +
      "." + std::to_string(MLX_VERSION_PATCH);
  return version.c_str();
}

const char* mlxcel_loaded_version() { return mx::version(); }

const char* mlxcel_op_name(uint32_t tag) {
  return tag < static_cast<uint32_t>(Tag::count) ? TAG_NAMES[tag] : nullptr;
}

const char* mlxcel_error() { return error.c_str(); }

int32_t mlxcel_device_count(int32_t kind) {
  return guarded<int32_t>(0, [&] {
    auto d = device(kind);
    return mx::is_available(d) ? mx::device_count(d.type) : 0;
  });
}

int32_t mlxcel_device_info(int32_t kind, char* text, size_t size) {
  return guarded<int32_t>(1, [&] {
    std::ostringstream out;
    for (auto& [key, value] : mx::device_info(device(kind))) {
      out << key << "=";
      std::visit([&](auto& v) { out << v; }, value);
      out << "\n";
    }
    auto all = out.str();
    if (size == 0) return 1;
    size_t n = std::min(all.size(), size - 1);
    std::memcpy(text, all.data(), n);
    text[n] = 0;
    return 0;
  });
}

void mlxcel_memory(uint64_t* active, uint64_t* peak) {
  guarded<int>(0, [&] {
    *active = mx::get_active_memory();
    *peak = mx::get_peak_memory();
    return 0;
  });
}

void mlxcel_reset_peak() {
  guarded<int>(0, [] {
    mx::reset_peak_memory();
    return 0;
  });
}

int32_t mlxcel_group_join(const char* backend, const char* settings, int32_t rank, int32_t size) {
  return guarded<int32_t>(1, [&] {
    if (group() && group()->rank() == rank && group()->size() == size) return 0;
    if (group()) throw std::logic_error("the process has joined another group already");
    std::istringstream lines(settings);
    for (std::string line; std::getline(lines, line);) {
      auto at = line.find('=');
      if (at == std::string::npos) throw std::invalid_argument("a setting has no value");
#if defined(__unix__) || defined(__APPLE__)
      setenv(line.substr(0, at).c_str(), line.substr(at + 1).c_str(), 1);
#else
      _putenv_s(line.substr(0, at).c_str(), line.substr(at + 1).c_str());
#endif
    }
    if (!mx::distributed::is_available(backend))
      throw std::runtime_error(std::string("this MLX was built without ") + backend);
    auto made = mx::distributed::init(true, backend);
    if (made.rank() != rank || made.size() != size) throw std::runtime_error("the group is not the one that was asked for");
    group() = made;
    return 0;
  });
}

mlxcel_context* mlxcel_context_new(int32_t kind) {
  return guarded<mlxcel_context*>(nullptr, [&] {
    auto d = device(kind);
    if (!mx::is_available(d)) throw std::runtime_error("this MLX has no such device");
    // Where f32 is asked for, f32 is computed: MLX takes tf32 for matrices on a GPU unless it is told not to.
#if defined(__unix__) || defined(__APPLE__)
    setenv("MLX_ENABLE_TF32", "0", 0);
#else
    if (!std::getenv("MLX_ENABLE_TF32")) _putenv_s("MLX_ENABLE_TF32", "0");
#endif
    return new mlxcel_context{Builder(mx::new_stream(d))};
  });
}

void mlxcel_context_free(mlxcel_context* c) {
  guarded<int>(0, [&] {
    mx::synchronize(c->builder.s);
    delete c;
    // Those of this thread, whose own threads would otherwise stay.
    mx::clear_streams();
    return 0;
  });
}

mlxcel_array*
mlxcel_array_new(int32_t dtype, const int64_t* shape, size_t rank, const void* bytes, size_t size) {
  return guarded<mlxcel_array*>(nullptr, [&] {
    auto dims = shape_of(shape, rank);
    auto t = dtype_of(dtype);
    size_t need = mx::size_of(t);
    for (int d : dims) need *= d;
    if (need != size) throw std::invalid_argument("the bytes are not as many as type and shape need");
    auto buffer = mx::allocator::malloc(std::max<size_t>(size, 1));
    if (size > 0) std::memcpy(buffer.buffer().raw_ptr(), bytes, size);
    return new mlxcel_array{array(std::move(buffer), dims, t)};
  });
}

int32_t mlxcel_array_read(mlxcel_context* c, mlxcel_array* a, void* bytes, size_t size) {
  return guarded<int32_t>(1, [&] {
    if (a->value.nbytes() != size) throw std::invalid_argument("the array has another size");
    a->value.eval();
    if (size == 0) return 0;
    auto whole = a->value;
    if (!whole.flags().row_contiguous) {
      whole = mx::contiguous(whole, false, c->builder.stream_of(whole.dtype()));
      whole.eval();
    }
    std::memcpy(bytes, whole.data<uint8_t>(), size);
    return 0;
  });
}

void mlxcel_array_free(mlxcel_array* a) {
  guarded<int>(0, [&] {
    delete a;
    return 0;
  });
}

mlxcel_program* mlxcel_program_new(mlxcel_context* c, mlxcel_array* const* statics, size_t count) {
  return guarded<mlxcel_program*>(nullptr, [&] {
    auto p = std::make_unique<mlxcel_program>();
    p->context = c;
    for (size_t i = 0; i < count; i++) {
      settle(*statics[i], c->builder);
      p->statics.push_back(statics[i]->value);
    }
    return p.release();
  });
}

int32_t mlxcel_program_add_state(mlxcel_program* p, int32_t dtype, const int64_t* shape, size_t rank) {
  return guarded<int32_t>(1, [&] {
    auto type = dtype_of(dtype);
    auto zeros = mx::zeros(shape_of(shape, rank), type, p->context->builder.stream_of(type));
    zeros.eval();
    p->states.push_back(zeros);
    return 0;
  });
}

int32_t mlxcel_program_copy_state(mlxcel_program* p, size_t state, const int64_t* pairs, size_t count) {
  int32_t failed = guarded<int32_t>(1, [&] {
    check_whole(*p);
    auto& b = p->context->builder;
    StreamScope scope(b, b.stream_of(p->states.at(state).dtype()));
    for (size_t i = 0; i < count; i++) {
      int from = static_cast<int>(pairs[2 * i]), to = static_cast<int>(pairs[2 * i + 1]);
      auto now = std::move(p->states.at(state));
      p->states[state] = b.put_run(now, to, mx::copy(b.rows(now, from, from + 1), b.s));
    }
    mx::async_eval({p->states.at(state)});
    return 0;
  });
  // The state was taken out before.
  if (failed && p->broken.empty()) p->broken = error;
  return failed;
}

int32_t mlxcel_program_is_broken(const mlxcel_program* p) { return !p->broken.empty(); }

void mlxcel_program_free(mlxcel_program* p) {
  guarded<int>(0, [&] {
    delete p;
    return 0;
  });
}

mlxcel_code* mlxcel_code_new(
    mlxcel_program* p, const int64_t* words, size_t count, const char* labels, size_t labels_size, int32_t mode) {
  return guarded<mlxcel_code*>(nullptr, [&] {
    auto out = std::make_unique<mlxcel_code>();
    out->code.main = Decoder(words, count).block();
    out->code.mode = mode;
    for (size_t at = 0; at < labels_size;) {
      out->code.labels.emplace_back(labels + at);
      at += out->code.labels.back().size() + 1;
    }
    if (mode == MLXCEL_COMPILED) compile_block(*out->code.main, p->context->builder, out->code);
    return out.release();
  });
}

uint64_t mlxcel_code_traces(mlxcel_code* c) { return c->code.traces; }

void mlxcel_code_free(mlxcel_code* c) {
  guarded<int>(0, [&] {
    delete c;
    return 0;
  });
}

int32_t mlxcel_run(
    mlxcel_program* p, mlxcel_code* c, mlxcel_array* const* inputs, size_t count, mlxcel_array** outputs) {
  bool started = false;
  int32_t failed = guarded<int32_t>(1, [&] {
    check_whole(*p);
    auto& b = p->context->builder;
    b.memo.clear();
    b.kept.clear();
    size_t states = p->states.size();
    auto begin = [&] {
      started = true;
      p->states.clear();
    };
    bool is_lazy = c->code.mode == MLXCEL_LAZY;
    Interpreter interpreter(b, c->code, is_lazy ? std::function<void()>(begin) : nullptr);
    Arrays results = interpreter.run(*c->code.main, arguments(*p, inputs, count));
    b.memo.clear();
    b.kept.clear();
    // First the states, then what was asked for. The old states are let go before anything runs, so that the new ones
    // take their memory.
    started = true;
    p->states.assign(results.begin(), results.begin() + states);
    start(results);
    for (size_t i = states; i < results.size(); i++) outputs[i - states] = new mlxcel_array{results[i]};
    return 0;
  });
  if (failed && started && p->broken.empty()) p->broken = error;
  return failed;
}
