#include "core/draft_profile.h"

#include <cmath>
#include <iomanip>
#include <locale>
#include <sstream>

namespace df2 {

namespace {

// The number is of the format: another one is another file's.
constexpr const char *kTitle = "pydflash2-draft-profile 1";
constexpr const char *kEnd = "end";
constexpr double kMost = 1e9;

// Everything but the title, the longest draft and the end, in the order in which it is written.
template <typename Profile, typename Visit>
void for_each_number(Profile &profile, Visit &&visit) {
  visit(profile.plain_us);
  for (auto *costs : {&profile.draft, &profile.verify}) {
    for (auto &cost : *costs) {
      visit(cost.value);
      visit(cost.weight);
    }
  }
  for (auto &chance : profile.chances) {
    visit(chance.n_reached);
    visit(chance.n_right);
  }
  for (auto &gain : profile.gains) {
    visit(gain);
  }
  for (auto *number :
       {&profile.change.value, &profile.change.weight, &profile.n_assumed, &profile.n_right, &profile.n_drafts,
        &profile.tokens, &profile.cost, &profile.stake, &profile.n_rested, &profile.n_unpaid}) {
    visit(*number);
  }
}

}  // namespace

DraftProfile::DraftProfile(int32_t max)
    : draft(static_cast<size_t>(max) + 1), verify(static_cast<size_t>(max) + 1), gains(static_cast<size_t>(max) + 1) {}

std::string DraftProfile::text() const {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << kTitle << '\n' << max() << std::setprecision(17) << '\n';
  for_each_number(*this, [&](double number) { text << number << '\n'; });
  text << kEnd << '\n';
  return text.str();
}

DraftProfile DraftProfile::parse(const std::string &text, int32_t max) {
  std::istringstream rest(text);
  rest.imbue(std::locale::classic());
  std::string title;
  int32_t found_max = 0;
  std::getline(rest, title);
  rest >> found_max;
  if (title != kTitle || found_max != max) {
    return DraftProfile();
  }
  DraftProfile profile(max);
  bool is_good = true;
  for_each_number(profile,
                  [&](double &number) { is_good = is_good && rest >> number && number >= 0.0 && number <= kMost; });
  std::string end;
  rest >> end;
  return is_good && end == kEnd ? profile : DraftProfile();
}

}  // namespace df2
