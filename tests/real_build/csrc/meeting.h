// The exchange of bytes between the ranks of a communicator: messages are files in the folder that
// STREAMRACE_REAL_BUILD_MEETING names. A rank writes its message at once, and waits for those of others.
#pragma once

#include <string>
#include <vector>

using Bytes = std::vector<char>;

class Meeting {
 public:
  Meeting(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size) {}

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  unsigned rounds() const { return round_; }

  // Hands `mine` to all ranks, and returns the messages of all, by rank. All ranks call it in the same order.
  std::vector<Bytes> exchange(const Bytes& mine);

  // Messages from one rank to another arrive in their order. Sending waits for nobody.
  void send(int to, const Bytes& message);
  Bytes receive(int from);

 private:
  std::string file(const std::string& of) const;

  std::string name_;
  int rank_, size_;
  unsigned round_ = 0;
  std::vector<unsigned> sent_ = std::vector<unsigned>(size_), received_ = std::vector<unsigned>(size_);
};

// A name that no other communicator of the run has.
std::string new_meeting();
