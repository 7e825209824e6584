// The C interface between the engine and MLX: what the engine loads at run time. Nothing throws across it: an entry that
// can fail returns null or non-zero and leaves its reason for mlxcel_error(). One thread owns a context and everything
// made from it, except evaluated arrays, which any context may read.
#pragma once

#include <cstddef>
#include <cstdint>

// Raised whenever an entry, an instruction or its encoding changes. The engine refuses another number.
#define MLXCEL_SHIM_ABI 3

#if defined(_WIN32)
#define MLXCEL_EXPORT extern "C" __declspec(dllexport)
#else
#define MLXCEL_EXPORT extern "C" __attribute__((visibility("default")))
#endif

struct mlxcel_context;
struct mlxcel_array;
struct mlxcel_program;
struct mlxcel_code;

// How a step is run.
enum mlxcel_mode : int32_t { MLXCEL_LAZY = 0, MLXCEL_EAGER = 1, MLXCEL_COMPILED = 2 };

MLXCEL_EXPORT uint32_t mlxcel_abi();
// The version of the headers this was compiled with, and of the library that is loaded.
MLXCEL_EXPORT const char* mlxcel_built_version();
MLXCEL_EXPORT const char* mlxcel_loaded_version();
// The name of an instruction, or null past the last one.
MLXCEL_EXPORT const char* mlxcel_op_name(uint32_t tag);
// Why the last call on this thread failed.
MLXCEL_EXPORT const char* mlxcel_error();

// Devices of a kind (0 processor, 1 GPU), and what MLX says of one: lines "key=value" into text.
MLXCEL_EXPORT int32_t mlxcel_device_count(int32_t kind);
MLXCEL_EXPORT int32_t mlxcel_device_info(int32_t kind, char* text, size_t size);
// Bytes in use and their peak since the last reset.
MLXCEL_EXPORT void mlxcel_memory(uint64_t* active, uint64_t* peak);
MLXCEL_EXPORT void mlxcel_reset_peak();

// Joins the process's one group by a backend of MLX ("ring", "nccl"), which reads its settings from the environment:
// lines "key=value" that are set before. Waits for the other members; the group stays for the life of the process, and joining it again does nothing.
MLXCEL_EXPORT int32_t mlxcel_group_join(const char* backend, const char* settings, int32_t rank, int32_t size);

MLXCEL_EXPORT mlxcel_context* mlxcel_context_new(int32_t kind);
MLXCEL_EXPORT void mlxcel_context_free(mlxcel_context*);

// A copy of bytes as an array. Types are numbered as in code.h.
MLXCEL_EXPORT mlxcel_array*
mlxcel_array_new(int32_t dtype, const int64_t* shape, size_t rank, const void* bytes, size_t size);
// Waits for the array and copies its elements, in row-major order.
MLXCEL_EXPORT int32_t mlxcel_array_read(mlxcel_context*, mlxcel_array*, void* bytes, size_t size);
MLXCEL_EXPORT void mlxcel_array_free(mlxcel_array*);

// Statics are the weights and constants, by number; states begin as zeros. Programs may share statics, which the first one moves
// to its device: so programs are made one at a time.
MLXCEL_EXPORT mlxcel_program* mlxcel_program_new(mlxcel_context*, mlxcel_array* const* statics, size_t count);
MLXCEL_EXPORT int32_t
mlxcel_program_add_state(mlxcel_program*, int32_t dtype, const int64_t* shape, size_t rank);
MLXCEL_EXPORT int32_t
mlxcel_program_copy_state(mlxcel_program*, size_t state, const int64_t* pairs, size_t count);
// Whether its states were lost in a step or a copy that failed.
MLXCEL_EXPORT int32_t mlxcel_program_is_broken(const mlxcel_program*);
MLXCEL_EXPORT void mlxcel_program_free(mlxcel_program*);

// One step of a program, encoded as code.h says; labels are separated by zeros.
MLXCEL_EXPORT mlxcel_code* mlxcel_code_new(
    mlxcel_program*, const int64_t* words, size_t count, const char* labels, size_t labels_size, int32_t mode);
// How often MLX has traced the code or a region of it; zero unless compiled.
MLXCEL_EXPORT uint64_t mlxcel_code_traces(mlxcel_code*);
MLXCEL_EXPORT void mlxcel_code_free(mlxcel_code*);

// Builds the step, starts it and puts its outputs, which may not be computed yet, into outputs.
MLXCEL_EXPORT int32_t mlxcel_run(
    mlxcel_program*, mlxcel_code*, mlxcel_array* const* inputs, size_t count, mlxcel_array** outputs);
