#include "antiphon/scope_table.h"

#include <gtest/gtest.h>

#include <set>

namespace antiphon {
namespace {

ScopeFields Tenant(const std::string& name) {
  return {.tenant = name, .cache_scope = "", .adapter = "", .weights = ""};
}

TEST(ScopeTable, EqualFieldsHaveOneId) {
  ScopeTable table;

  EXPECT_EQ(table.Intern(Tenant("a")), table.Intern(Tenant("a")));
  EXPECT_EQ(table.num_scopes(), 1U);
}

TEST(ScopeTable, FieldsAreToldApartByPlaceAndLength) {
  ScopeTable table;
  const std::set<ScopeId> ids = {
      table.Intern({.tenant = "a", .cache_scope = "", .adapter = "", .weights = ""}),
      table.Intern({.tenant = "", .cache_scope = "a", .adapter = "", .weights = ""}),
      table.Intern({.tenant = "", .cache_scope = "", .adapter = "a", .weights = ""}),
      table.Intern({.tenant = "", .cache_scope = "", .adapter = "", .weights = "a"}),
      table.Intern({.tenant = "a1:b", .cache_scope = "", .adapter = "", .weights = ""}),
      table.Intern({.tenant = "a", .cache_scope = "b", .adapter = "", .weights = ""}),
  };

  EXPECT_EQ(ids.size(), 6U);
  EXPECT_FALSE(ids.contains(0));
}

TEST(ScopeTable, ForgetsTheOldestOfTheIdleAndNeverOneInUse) {
  ScopeTable table;
  const ScopeId used = table.Intern(Tenant("used"));
  table.AddUse(used);
  const ScopeId idle = table.Intern(Tenant("idle"));

  for (std::size_t i = 0; i < ScopeTable::kMaxIdleScopes; ++i) {
    table.Intern(Tenant(std::to_string(i)));
  }

  EXPECT_TRUE(table.Contains(used));
  EXPECT_FALSE(table.Contains(idle));
  EXPECT_EQ(table.num_scopes(), ScopeTable::kMaxIdleScopes + 1);
  EXPECT_NE(table.Intern(Tenant("idle")), idle);
}

TEST(ScopeTable, AScopeThatWasAskedForLatelyIsKept) {
  ScopeTable table;
  const ScopeId first = table.Intern(Tenant("first"));
  const ScopeId second = table.Intern(Tenant("second"));
  for (std::size_t i = 2; i < ScopeTable::kMaxIdleScopes; ++i) {
    table.Intern(Tenant(std::to_string(i)));
  }

  table.Intern(Tenant("first"));
  table.Intern(Tenant("one more"));

  EXPECT_TRUE(table.Contains(first));
  EXPECT_FALSE(table.Contains(second));
}

TEST(ScopeTable, IsIdleAgainWhenTheLastUseEnds) {
  ScopeTable table;
  const ScopeId scope = table.Intern(Tenant("a"));
  table.AddUse(scope);
  table.AddUse(scope);

  table.DropUse(scope);
  EXPECT_EQ(table.num_uses(scope), 1);
  table.DropUse(scope);

  EXPECT_EQ(table.num_uses(scope), 0);
  EXPECT_TRUE(table.Contains(scope));
  EXPECT_THROW(table.DropUse(scope), InvariantError);
}

TEST(ScopeTable, TheHashIsTheFormulaThatRoutersUse) {
  ScopeTable table;
  const ScopeFields fields = {
      .tenant = "t\xc3\xa9", .cache_scope = "c", .adapter = "", .weights = "v1"};

  // Computed from the formula in scope_table.h, not by this code.
  EXPECT_EQ(HashScope(fields), 0x7c7d07d04563a740ULL);
  EXPECT_EQ(table.hash(table.Intern(fields)), HashScope(fields));
}

}  // namespace
}  // namespace antiphon
