// The C boundary: arguments are checked, exceptions become status codes and the thread's message.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>

#include "common/error.h"

namespace df2 {

// Keeps the message for df2_error_last(), or none if there is no memory for it, and returns the status.
int32_t record_error(df2_status status, const char *message) noexcept;

template <typename Body>
int32_t guard(Body &&body) noexcept {
  try {
    body();
    return DF2_OK;
  } catch (const Error &error) {
    return record_error(error.status(), error.what());
  } catch (const std::bad_alloc &) {
    return record_error(DF2_ENOMEM, "out of memory");
  } catch (const std::exception &error) {
    return record_error(DF2_EINTERNAL, error.what());
  } catch (...) {
    return record_error(DF2_EINTERNAL, "an unknown exception reached the C boundary");
  }
}

inline void require(bool condition, const char *problem) {
  if (!condition) {
    throw Error(DF2_EINVAL, problem);
  }
}

// Copies what the caller filled in over the defaults. A caller built against a newer header may pass a larger struct,
// as long as what this library does not know is zero.
template <typename Options>
Options read_options(const Options *given, const Options &defaults) {
  if (given == nullptr) {
    return defaults;
  }
  require(given->struct_size >= sizeof(uint32_t), "options.struct_size is not set; start from the _INIT macro");
  const size_t known = given->struct_size < sizeof(Options) ? given->struct_size : sizeof(Options);
  const auto *bytes = reinterpret_cast<const unsigned char *>(given);
  for (size_t i = known; i < given->struct_size; ++i) {
    require(bytes[i] == 0, "the options have fields this version does not know; update the library");
  }
  Options options = defaults;
  std::memcpy(static_cast<void *>(&options), given, known);
  options.struct_size = sizeof(Options);
  return options;
}

// What a df2_kernels says.
inline bool wants_kernels(int32_t kernels) {
  require(kernels == DF2_KERNELS_DEFAULT || kernels == DF2_KERNELS_OFF, "options.kernels is not a df2_kernels");
  return kernels == DF2_KERNELS_DEFAULT;
}

// Of a drafter; 0: any.
inline void require_version(int32_t version) {
  require(version >= 0 && version <= 2, "options.version must be 0 (any), 1 or 2");
}

template <typename Options>
void init_options(Options *options, size_t size, const Options &defaults) {
  require(options != nullptr, "options is NULL");
  require(size == sizeof(Options), "this size of options is not known; update the library");
  *options = defaults;
}

// Copies a result struct into the caller's, which may be of an older, shorter version.
template <typename Result>
void write_result(Result *out, Result result) {
  require(out != nullptr, "the result struct is NULL");
  require(out->struct_size >= sizeof(uint32_t), "struct_size of the result is not set");
  const size_t size = out->struct_size < sizeof(Result) ? out->struct_size : sizeof(Result);
  result.struct_size = out->struct_size;
  std::memcpy(static_cast<void *>(out), &result, size);
}

}  // namespace df2
