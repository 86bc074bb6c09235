// Profiles in files: what is kept is found, by its key alone; whatever else may be in the folder, or be wrong with it,
// is as if there were none; and nothing is left behind but the files.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "check.h"
#include "core/profile_store.h"

namespace {

namespace fs = std::filesystem;

constexpr int32_t kMax = 3;

df2::DraftProfile some_profile(double plain_us) {
  df2::DraftProfile profile(kMax);
  profile.plain_us = plain_us;
  profile.verify[1] = {1.25, 3.0};
  profile.n_drafts = 7.0;
  return profile;
}

std::vector<fs::path> files_in(const fs::path &folder) {
  return {fs::directory_iterator(folder), fs::directory_iterator()};
}

std::string read_all(const fs::path &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_all(const fs::path &path, const std::string &text) {
  std::ofstream(path, std::ios::binary) << text;
}

void test_files(const fs::path &folder) {
  const std::string key = "target a\ndrafter b";
  CHECK(df2::find_profile(folder, key, kMax).max() == 0);  // the folder is not there yet
  df2::keep_profile(folder, key, some_profile(1.0));
  df2::keep_profile(folder, key, some_profile(2.0));
  CHECK(df2::read_profile(folder, key, kMax).text() == some_profile(2.0).text());
  CHECK(df2::read_profile(folder, key + "c", kMax).max() == 0);
  CHECK(df2::read_profile(folder, key, kMax + 1).max() == 0);
  CHECK(files_in(folder).size() == 1);

  const fs::path path = files_in(folder)[0];
  const std::string text = read_all(path);
  std::string other_key = text;
  other_key[0] = 'x';
  for (const std::string &damaged : {std::string(), text.substr(0, text.size() / 2), other_key, std::string(1000, '\0'),
                                     std::string(2 << 20, '1')}) {
    write_all(path, damaged);
    CHECK(df2::read_profile(folder, key, kMax).max() == 0);
  }
  // a folder in its place can be neither read nor replaced; this process remembers
  fs::remove(path);
  fs::create_directory(path);
  CHECK(df2::read_profile(folder, key, kMax).max() == 0);
  df2::keep_profile(folder, key, some_profile(3.0));
  CHECK(df2::find_profile(folder, key, kMax).plain_us == 3.0);
  CHECK(files_in(folder).size() == 1);
}

// Without a folder, or with one that cannot be made.
void test_process(const fs::path &folder) {
  write_all(folder / "file", "");
  for (const std::string &none : {std::string(), (folder / "file" / "profiles").string(), std::string("/proc/none")}) {
    const std::string key = "none " + none;
    df2::keep_profile(none, key, some_profile(4.0));
    CHECK(df2::find_profile(none, key, kMax).plain_us == 4.0);
    CHECK(df2::find_profile(none, key, kMax + 1).max() == 0);
  }
}

}  // namespace

int main() {
  std::string name = (fs::temp_directory_path() / "profiles-XXXXXX").string();
  CHECK(mkdtemp(name.data()) != nullptr);
  test_files(fs::path(name) / "deep" / "down");
  test_process(name);
  fs::remove_all(name);
  return report("profile_store");
}
