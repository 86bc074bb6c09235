// What the opaque handles of dflash2.h hold.
#pragma once

#include <memory>

#include "core/session.h"
#include "drafter/drafter.h"
#include "target/target.h"

struct df2_target {
  std::unique_ptr<df2::Target> target;
};

struct df2_drafter {
  std::shared_ptr<const df2::Drafter> drafter;
};

struct df2_session {
  std::unique_ptr<df2::Session> session;
};
