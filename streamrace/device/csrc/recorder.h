// Records *what* work computes, in addition to its times, for a replay (streamrace/device/recording.py converts it to
// streamrace.trace.records.Call). Only if a recording was requested. Work that cannot be recorded adds a sentence, and
// such a recording is never replayed.
//
// A value is a few words, the first of which gives its kind. Most calls repeat earlier ones: each is written once, and
// then referred to by its number. Bytes from the host are kept here until Python fetches them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <set>
#include <string>

#include "allocator.h"

namespace simgpu {

class Recorder {
 public:
  bool on = false;

  void begin(bool wanted);

  // The computation of operation `op`, after its issue: an operator with its arguments. `given`: as the program passed them;
  // `taken`: the same with the host's tensors as they were copied. `fresh`: results that are new tensors, and their
  // positions. `host`: the host ran it, after a wait; the operator creates the `outs` of such a call.
  using Fresh = std::vector<std::pair<int64_t, at::Tensor>>;
  void call(int64_t op, const c10::OperatorHandle& handle, const torch::jit::Stack& given, const torch::jit::Stack& taken,
            const Fresh& fresh, const at::Generator& numbers);
  // The two halves of this for operators run by the host: arguments are recorded before, results after.
  std::vector<int64_t> arguments(const c10::OperatorHandle& handle, const torch::jit::Stack& given,
                                 const torch::jit::Stack& taken, const std::vector<int>& outs);
  void call(int64_t op, std::vector<int64_t> words, const Fresh& fresh, const at::Generator& numbers, bool host);

  struct Part {
    const at::Tensor& tensor;  // a CPU tensor
    const Block* block;        // over this block's memory; null: the host's own
  };
  void copy(int64_t op, Part to, Part from);
  void look(int64_t op, Part from, const at::Tensor& like);  // the host gets a copy, like this tensor
  void nothing(int64_t op);                                  // the host has done it already
  void wrote(int64_t op, const std::string& bytes);          // by the host itself, to pinned memory
  void refuse(const std::string& why);

  // Pinned memory, as far as the recording knows its contents. Writes by the host past torch (through an array, by another
  // library) are found when a copy reads the memory: its contents then differ.
  void pinned(const Block& block);
  void unpinned(int64_t block) { held_.erase(block), given_.erase(block); }
  void used(const Block& block, int64_t stream);  // a stream was given work on it
  void given(const Block& block);                 // an array of it exists, by which the program may access it in any way
  void released(const Block& block);
  void known(const std::vector<Access>& accesses, const char* data);  // the present contents, of one block
  void read(const std::vector<Access>& accesses, const char* data);
  void unknown(int64_t block) { held_.erase(block); }

  const std::string& bytes(int64_t number) const { return bytes_.at(number); }
  void forget(int64_t number) { bytes_.erase(number); }

 private:
  static constexpr int64_t kMost = 1 << 14;  // calls known by number; beyond that all are written anew
  int64_t before_ = 0;                       // number of blocks that existed at the start: their contents are unknown
  int64_t kept_ = 0, calls_ = 0;
  std::map<int64_t, std::string> bytes_;
  std::map<std::vector<int64_t>, int64_t> known_;
  std::set<std::string> refused_;
  std::map<int64_t, std::string> held_;  // by block
  struct Given {
    int64_t arrays = 0;
    std::set<int64_t> streams;  // that have had work on it
  };
  std::map<int64_t, Given> given_;

  int64_t keep(std::string bytes);
  void write(int64_t op, std::vector<int64_t> words, int64_t numbers, bool host);
  void tensor(std::vector<int64_t>& words, const at::Tensor& given, const at::Tensor& taken);
  void part(std::vector<int64_t>& words, Part part);
  void view(std::vector<int64_t>& words, int64_t block, const at::Tensor& tensor, int64_t offset);
  void value(std::vector<int64_t>& words, const c10::IValue& given, const c10::IValue& taken);
};

Recorder& recorder();

}  // namespace simgpu
