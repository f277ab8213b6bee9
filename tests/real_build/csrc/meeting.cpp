#include "meeting.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

namespace {

constexpr int kPatience = 120;  // seconds: a rank that failed never comes

[[noreturn]] void give_up(const std::string& why) {
  fprintf(stderr, "streamrace: the fake NCCL %s\n", why.c_str());
  abort();
}

std::string folder() {
  const char* told = getenv("STREAMRACE_REAL_BUILD_MEETING");
  if (told == nullptr || *told == 0) give_up("needs a folder in STREAMRACE_REAL_BUILD_MEETING, in which ranks exchange messages");
  return told;
}

void write_message(const std::string& path, const Bytes& message) {
  std::string beginning = path + ".part";
  std::ofstream out(beginning, std::ios::binary);
  out.write(message.data(), static_cast<std::streamsize>(message.size()));
  out.close();
  // The name appears when the message is whole.
  if (!out || rename(beginning.c_str(), path.c_str()) != 0) give_up("cannot write " + path);
}

Bytes read_message(const std::string& path) {
  auto until = std::chrono::steady_clock::now() + std::chrono::seconds(kPatience);
  for (auto pause = std::chrono::microseconds(20); access(path.c_str(), R_OK) != 0;) {
    if (std::chrono::steady_clock::now() > until) give_up("waited two minutes for another rank: " + path);
    std::this_thread::sleep_for(pause);
    if (pause < std::chrono::microseconds(500)) pause *= 2;
  }
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

}  // namespace

std::string new_meeting() {
  static unsigned made = 0;
  return std::to_string(getpid()) + "-" + std::to_string(made++);
}

std::string Meeting::file(const std::string& of) const { return folder() + "/" + name_ + "." + of; }

std::vector<Bytes> Meeting::exchange(const Bytes& mine) {
  auto of = [this](unsigned round, int rank) { return file(std::to_string(round) + "." + std::to_string(rank)); };
  std::vector<Bytes> all(size_);
  if (size_ > 1) write_message(of(round_, rank_), mine);
  for (int rank = 0; rank < size_; ++rank) all[rank] = rank == rank_ ? mine : read_message(of(round_, rank));
  // All ranks have come to this round, so all have read what was written in the one before.
  if (size_ > 1 && round_ > 0) unlink(of(round_ - 1, rank_).c_str());
  ++round_;
  return all;
}

void Meeting::send(int to, const Bytes& message) {
  write_message(file(std::to_string(rank_) + "-" + std::to_string(to) + "." + std::to_string(sent_[to]++)), message);
}

Bytes Meeting::receive(int from) {
  std::string path = file(std::to_string(from) + "-" + std::to_string(rank_) + "." + std::to_string(received_[from]++));
  Bytes message = read_message(path);
  unlink(path.c_str());
  return message;
}
