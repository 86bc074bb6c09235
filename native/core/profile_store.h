// Keeps what the draft-length choice learns about a pair: in this process, and, if the program names a folder, in files
// for later ones. Nothing here fails: what cannot be read or written is as if it were not there.
#pragma once

#include <cstdint>
#include <string>

#include "core/draft_profile.h"

namespace df2 {

// key: says what the profile depends on, in any number of lines. folder: of the files; empty: none. The profile is the
// file's, or else this process's, for this longest draft; or empty.
DraftProfile find_profile(const std::string &folder, const std::string &key, int32_t max) noexcept;

// The file's alone.
DraftProfile read_profile(const std::string &folder, const std::string &key, int32_t max);

// Takes the place of the one there was, at once: nobody sees half a file.
void keep_profile(const std::string &folder, const std::string &key, const DraftProfile &profile) noexcept;

}  // namespace df2
