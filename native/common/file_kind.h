// What a file is when it is not the GGUF file it should be, and what a path leads to when it is no file: sentences for
// messages, which end with the remedy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace df2 {

// Of a file of that size which begins with these bytes.
std::string not_gguf(const uint8_t *head, size_t n_head, size_t size);

// Why a path cannot be opened, after errno said so; or is no regular file.
std::string not_a_file(const std::string &path, int problem);

// A remark if names say that the file's download has not finished; else empty.
std::string unfinished_download(const std::string &path);

// What is known of a tensor type that ggml does not have, or no longer.
std::string foreign_type(uint32_t number);

}  // namespace df2
