// Tests the texts that name missing ranks and each rank's latest call.
#include "engine/answers.hpp"

#include <gtest/gtest.h>

#include "engine/call_record.hpp"

namespace axon::engine {
namespace {

Answers asked(int num_ranks, sync::Clock::time_point asked_at) {
  Answers answers(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) answers.note_asked(rank, asked_at);
  return answers;
}

TEST(Answers, ranks_that_have_entered_and_ranks_that_have_not_are_told_apart) {
  const sync::Clock::time_point asked_at = sync::Clock::now();
  Answers answers = asked(4, asked_at);
  answers.record(0, {.sequence = 7, .calls = "last entered all_reduce #7, 1.5 s ago"});
  answers.record(1, {.sequence = 6, .calls = "last entered barrier #6, 2.1 s ago"});
  answers.record(3, {.sequence = 9, .calls = "last entered barrier #9, 0.0 s ago"});
  EXPECT_FALSE(answers.all_since(asked_at));
  EXPECT_EQ(answers.findings(7, asked_at),
            "Not entered by: rank 1 (last entered barrier #6, 2.1 s ago), rank 2 (does not answer). Entered by: rank 0 "
            "(last entered all_reduce #7, 1.5 s ago), rank 3 (last entered barrier #9, 0.0 s ago).");
  answers.record(2, {.sequence = 7, .calls = "last entered all_reduce #7, 0.1 s ago"});
  EXPECT_TRUE(answers.all_since(asked_at));
}

TEST(Answers, an_answer_to_an_earlier_question_is_none) {
  const sync::Clock::time_point asked_at = sync::Clock::now() + std::chrono::hours(1);
  Answers answers = asked(1, asked_at);
  answers.record(0, {.sequence = 7, .calls = "old"});
  EXPECT_EQ(answers.findings(7, asked_at), "Not entered by: rank 0 (does not answer).");
  EXPECT_EQ(answers.all(asked_at), "Last entered: rank 0 (does not answer).");
}

TEST(Answers, sequence_numbers_wrap) {
  const sync::Clock::time_point asked_at = sync::Clock::now();
  Answers answers = asked(1, asked_at);
  answers.record(0, {.sequence = 1, .calls = "new"});
  EXPECT_EQ(answers.findings(UINT32_MAX, asked_at), "All ranks have entered it. Entered by: rank 0 (new).");
}

TEST(Answers, of_many_ranks_some_are_named_and_all_are_counted) {
  const sync::Clock::time_point asked_at = sync::Clock::now();
  const Answers answers = asked(1000, asked_at);
  const std::string text = answers.findings(1, asked_at);
  EXPECT_NE(text.find("rank 15 (does not answer), and 984 more."), std::string::npos) << text;
  EXPECT_EQ(text.find("rank 16"), std::string::npos) << text;
  EXPECT_LT(text.size(), 1000u);
}

TEST(Answers, ranks_that_were_not_asked_do_not_count) {
  Answers answers(100);
  const sync::Clock::time_point asked_at = sync::Clock::now();
  answers.note_asked(50, asked_at - std::chrono::seconds(1));
  for (const int rank : {3, 7, 99}) answers.note_asked(rank, asked_at);
  answers.record(3, {.sequence = 2, .calls = "last entered barrier #2, 0.1 s ago"});
  answers.record(99, {.sequence = 2, .calls = "last entered barrier #2, 0.2 s ago"});
  EXPECT_FALSE(answers.all_since(asked_at));
  answers.record(7, {.sequence = 1, .calls = "last entered barrier #1, 9.0 s ago"});
  EXPECT_TRUE(answers.all_since(asked_at));
  EXPECT_EQ(answers.missing(2, asked_at), std::vector<int>{7});
  EXPECT_EQ(
      answers.findings(2, asked_at),
      "3 of 100 ranks were asked. Not entered by: rank 7 (last entered barrier #1, 9.0 s ago). Entered by: rank 3 "
      "(last entered barrier #2, 0.1 s ago), rank 99 (last entered barrier #2, 0.2 s ago).");
  answers.note_asked(60, asked_at + std::chrono::milliseconds(1));  // a later query is another one
  EXPECT_TRUE(answers.all_since(asked_at));
  EXPECT_EQ(answers.findings(1, asked_at).substr(0, 60),
            "3 of 100 ranks were asked. They all have entered it. Entered");
}

TEST(Answers, queries_that_many_others_follow_are_not_answered_by_silence) {
  const sync::Clock::time_point asked_at = sync::Clock::now();
  Answers answers = asked(2, asked_at);
  for (int later = 1; later <= 20; ++later) answers.note_asked(1, asked_at + std::chrono::milliseconds(later));
  answers.record(0, {.sequence = 1, .calls = "new"});
  EXPECT_FALSE(answers.all_since(asked_at));
  EXPECT_EQ(answers.missing(1, asked_at), std::vector<int>{1});
}

TEST(CallRecord, says_what_was_called_and_how_long_ago) {
  CallRecord record{.kind = transport::OperationKind::kAllReduce,
                    .dtype = DataType::kFloat32,
                    .reduction = Reduction::kSum,
                    .sequence = 5,
                    .replay = {},
                    .shape = {.sizes = {4, 256}, .num_dimensions = 2},
                    .called_at = sync::Clock::now() - std::chrono::milliseconds(3250),
                    .call_site = ""};
  EXPECT_EQ(record.describe(), "all_reduce #5 (float32[4, 256], SUM)");
  record.sequence = 0;
  EXPECT_EQ(record.describe(), "all_reduce (float32[4, 256], SUM)");
  record.sequence = 5;
  EXPECT_EQ(record.describe_with_age(), "all_reduce #5 (float32[4, 256], SUM), 3.2 s ago");
  record.call_site = "train.py:12, in step";
  EXPECT_EQ(record.describe_with_age(), "all_reduce #5 (float32[4, 256], SUM), 3.2 s ago, at train.py:12, in step");
}

TEST(CallRecord, says_which_replay_of_a_graph_it_is) {
  const CallRecord record{.kind = transport::OperationKind::kAllReduce,
                          .dtype = DataType::kFloat32,
                          .reduction = Reduction::kSum,
                          .replay = {.call = 3, .launch = 17},
                          .shape = {.sizes = {4, 256}, .num_dimensions = 2},
                          .called_at = {},
                          .call_site = "train.py:12, in step"};
  EXPECT_EQ(record.describe(),
            "all_reduce of CUDA graphs (captured as #3 at train.py:12, in step, launch #17) (float32[4, 256], SUM)");
}

}  // namespace
}  // namespace axon::engine
