#include "core/profile_store.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <system_error>

#include "common/error.h"

namespace df2 {

namespace {

// A file is a key, an empty line and a profile. One that is larger is none of ours.
constexpr std::uintmax_t kMaxBytes = 1 << 20;

std::mutex mutex;
std::map<std::string, DraftProfile> &profiles() {
  static auto *const kept = new std::map<std::string, DraftProfile>();
  return *kept;
}

// FNV-1a: file names must be the same tomorrow, which std::hash does not promise. Two keys with one name only take the
// file from each other.
std::string file_of(const std::string &folder, const std::string &key) {
  uint64_t hash = 14695981039346656037ull;
  for (const char c : key) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  }
  return folder + format("/%016llx.profile", static_cast<unsigned long long>(hash));
}

void write_file(const std::string &path, const std::string &text) {
  static std::atomic<unsigned> n_written{0};
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const std::string unfinished = path + format(".%ld-%u", static_cast<long>(getpid()), n_written++);
  std::ofstream file(unfinished, std::ios::binary);
  file << text;
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    std::remove(unfinished.c_str());
  }
}

}  // namespace

DraftProfile read_profile(const std::string &folder, const std::string &key, int32_t max) {
  const std::string path = file_of(folder, key);
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) || std::filesystem::file_size(path, error) > kMaxBytes) {
    return DraftProfile();
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::string head = key + "\n\n";
  return text.compare(0, head.size(), head) == 0 ? DraftProfile::parse(text.substr(head.size()), max) : DraftProfile();
}

DraftProfile find_profile(const std::string &folder, const std::string &key, int32_t max) noexcept {
  try {
    const DraftProfile read = folder.empty() ? DraftProfile() : read_profile(folder, key, max);
    if (read.max() == max) {
      return read;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = profiles().find(key);
    return found != profiles().end() && found->second.max() == max ? found->second : DraftProfile();
  } catch (...) {
    return DraftProfile();
  }
}

void keep_profile(const std::string &folder, const std::string &key, const DraftProfile &profile) noexcept {
  try {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      profiles()[key] = profile;
    }
    if (!folder.empty()) {
      write_file(file_of(folder, key), key + "\n\n" + profile.text());
    }
  } catch (...) {
    // a later session begins without it
  }
}

}  // namespace df2
