#include "common/file_kind.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <vector>

#include "common/error.h"
#include "ggml.h"

namespace df2 {

namespace fs = std::filesystem;

namespace {

struct Prefix {
  const char *bytes;
  size_t n_bytes;
  const char *what;
};

#define PREFIX(text, what)       \
  Prefix {                       \
    text, sizeof(text) - 1, what \
  }
constexpr char kBeforeGguf[] = "of a format from before GGUF: get a GGUF file, or convert the original weights again";
const Prefix kPrefixes[] = {
    PREFIX("version https://git-lfs.github.com/spec/",
           "a Git LFS pointer, not the file itself: run `git lfs pull` where it was cloned, or download the file"),
    PREFIX("\x1f\x8b", "compressed with gzip: unpack it first (gunzip)"),
    PREFIX("\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first (unzstd)"),
    PREFIX("\xfd"
           "7zXZ",
           "compressed with xz: unpack it first (unxz)"),
    PREFIX("BZh", "compressed with bzip2: unpack it first (bunzip2)"),
    PREFIX("7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first"),
    PREFIX("PK\x03\x04", "a ZIP archive, as PyTorch's .bin and .pt files are: unpack or convert it first"),
    PREFIX("lmgg", kBeforeGguf),
    PREFIX("fmgg", kBeforeGguf),
    PREFIX("tjgg", kBeforeGguf),
    PREFIX("algg", kBeforeGguf),
};
#undef PREFIX

constexpr char kPage[] =
    "a web page, not the file: use the address that downloads it (on Hugging Face /resolve/ instead of /blob/)";
constexpr char kHubDownloads[] = ".cache/huggingface/download";
const char *const kUnfinished[] = {".incomplete", ".part", ".partial", ".crdownload", ".download", ".aria2", ".tmp"};

bool begins_with(const std::string &text, const char *prefix) {
  return text.compare(0, std::strlen(prefix), prefix) == 0;
}

bool is_page(const std::string &head) {
  std::string text = head.substr(std::min(head.size(), head.find_first_not_of(" \t\r\n")));
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return begins_with(text, "<!doctype html") || begins_with(text, "<html") || begins_with(text, "<?xml") ||
         begins_with(text, "<head") || begins_with(text, "<script");
}

bool is_safetensors(const std::string &head, size_t size) {
  uint64_t n_header = 0;
  if (head.size() < 9 || head[8] != '{') {
    return false;
  }
  std::memcpy(&n_header, head.data(), sizeof(n_header));
  return n_header >= 2 && n_header <= size - sizeof(n_header);
}

bool is_text(const std::string &head) {
  return std::all_of(head.begin(), head.end(), [](unsigned char c) { return std::isprint(c) || std::isspace(c); });
}

// OWNER/NAME[:TAG], as model hubs name their folders.
bool is_hub_name(const std::string &path) {
  const bool is_plain = std::all_of(path.begin(), path.end(), [](unsigned char c) {
    return std::isalnum(c) || (c != '\0' && std::strchr("/_.-:", c) != nullptr);
  });
  std::error_code ignored;
  return is_plain && std::count(path.begin(), path.end(), '/') == 1 && fs::path(path).is_relative() &&
         fs::path(path).extension() != ".gguf" && !fs::exists(fs::path(path).parent_path(), ignored);
}

std::string missing(const std::string &path) {
  std::error_code failed;
  const fs::path link = fs::read_symlink(path, failed);
  if (!failed) {
    return "a link to " + link.string() + ", which is not there: download it again";
  }
  if (path.find("://") != std::string::npos) {
    return "an address: nothing is downloaded here; download the file and give its path";
  }
  if (is_hub_name(path)) {
    return "no such file. If it is a name on a model hub: nothing is downloaded here; download it (`hf download " +
           path.substr(0, path.find(':')) + "`) and give the file's path";
  }
  if (begins_with(path, "~")) {
    return "no such file: only shells know what ~ stands for; give the whole path";
  }
  return "no such file" + unfinished_download(path);
}

std::string folder(const fs::path &path) {
  std::vector<std::string> found;
  std::error_code failed;
  for (fs::directory_iterator entry(path, failed), end; !failed && entry != end; entry.increment(failed)) {
    if (entry->path().extension() == ".gguf") {
      found.push_back(entry->path().filename().string());
    }
  }
  std::sort(found.begin(), found.end());
  std::string names;
  for (size_t i = 0; i < found.size() && i < 3; ++i) {
    names += (i == 0 ? " (" : ", ") + found[i];
  }
  if (found.empty() && fs::exists(path / "config.json", failed)) {
    return "a Hugging Face folder: convert a drafter with `pydflash2 convert`, and a target with llama.cpp's "
           "convert_hf_to_gguf.py";
  }
  return "a folder: give the GGUF file's own path" + names + (names.empty() ? "" : ")");
}

}  // namespace

std::string not_gguf(const uint8_t *head, size_t n_head, size_t size) {
  const std::string text(reinterpret_cast<const char *>(head), n_head);
  for (const Prefix &prefix : kPrefixes) {
    if (text.compare(0, prefix.n_bytes, prefix.bytes, prefix.n_bytes) == 0) {
      return prefix.what;
    }
  }
  if (is_page(text)) {
    return kPage;
  }
  if (is_safetensors(text, size)) {
    return "a safetensors file: convert a drafter's folder with `pydflash2 convert`, or get the model as GGUF";
  }
  if (text.find_first_not_of('\0') == std::string::npos) {
    return "nothing but zeros at its beginning: an unfinished download; download it again";
  }
  if (is_text(text)) {
    std::string line = text.substr(0, std::min<size_t>(60, text.find_first_of("\r\n")));
    return "text ('" + line + "'), perhaps what a server answered instead of the file: download it again";
  }
  return "something else (convert a Hugging Face drafter with `pydflash2 convert`)";
}

std::string not_a_file(const std::string &path, int problem) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    return folder(path);
  }
  if (problem == ENOENT || problem == ENOTDIR) {
    return missing(path);
  }
  return problem != 0 ? std::strerror(problem) : "not a regular file";
}

std::string unfinished_download(const std::string &path) {
  std::error_code ignored;
  const std::string ending = fs::path(path).extension().string();
  for (const char *suffix : kUnfinished) {
    if (ending == suffix) {
      return " (its name ends in " + ending + ": the download has not finished)";
    }
    if (fs::exists(path + suffix, ignored)) {
      return " (" + fs::path(path + suffix).filename().string() + " beside it says that the download has not finished)";
    }
  }
  const fs::path file(path);
  std::error_code failed;
  for (fs::directory_iterator entry(file.parent_path() / kHubDownloads, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    if (begins_with(name, file.filename().c_str()) && entry->path().extension() == ".incomplete") {
      return std::string(" (an .incomplete file in ") + kHubDownloads + " says that the download has not finished)";
    }
  }
  return "";
}

std::string foreign_type(uint32_t number) {
  if (number < GGML_TYPE_COUNT) {  // removed: the name says so
    const bool is_bitnets = number >= 36 && number <= 38;
    return std::string(ggml_type_name(static_cast<ggml_type>(number))) + (is_bitnets ? "; or bitnet.cpp's own" : "");
  }
  // a few numbers that are met
  static const std::map<uint32_t, const char *> kIkLlama = {
      {133, "Q6_0"},   {134, "IQ1_BN"}, {135, "IQ2_BN"}, {137, "IQ2_K"},  {138, "IQ3_K"},   {139, "IQ4_K"},
      {140, "IQ5_K"},  {141, "IQ6_K"},  {144, "IQ4_KS"}, {145, "IQ2_KS"}, {146, "IQ4_KSS"}, {152, "IQ5_KS"},
      {153, "IQ2_KT"}, {154, "IQ3_KT"}, {155, "IQ4_KT"}, {156, "IQ3_KS"}, {157, "IQ2_KL"},  {158, "IQ1_KT"},
  };
  const auto found = kIkLlama.find(number);
  if (found != kIkLlama.end()) {
    return std::string(found->second) + " of ik_llama.cpp";
  }
  return number >= 97 && number < 400 ? "ik_llama.cpp's, most likely" : "another program's, or a newer llama.cpp's";
}

}  // namespace df2
