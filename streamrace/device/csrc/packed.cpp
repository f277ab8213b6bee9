#include "packed.h"

#include <cstring>

#include "device.h"
#include "trace.h"

namespace simgpu {
namespace {

// Their places in streamrace.device.trace.TraceRecord.
enum Record { kAllocRecord = 5, kFreeRecord, kRecordStreamRecord, kLaunchRecord = 9, kRecordRecord = 11, kWaitRecord,
              kHostWaitRecord, kHostStepRecord = 15, kReuseRecord = 23, kExportRecord };

constexpr int64_t kHostStream = 65;  // tracing.py's HOST
constexpr const char* kHow[] = {"synchronize", "read", "query", "asked", "copy", "met"};  // of tracing.py, too

class Packer {
 public:
  explicit Packer(std::string& bytes) : bytes_(bytes) {}

  Packer& array(size_t size) {
    if (size < 16) return byte(0x90 | size);
    return size < 1 << 16 ? head<uint16_t>(0xdc, size) : head<uint32_t>(0xdd, size);
  }
  Packer& number(int64_t value) {
    if (value >= 0) {
      if (value < 1 << 7) return byte(static_cast<uint64_t>(value));
      if (value < 1 << 8) return head<uint8_t>(0xcc, value);
      if (value < 1 << 16) return head<uint16_t>(0xcd, value);
      return value < int64_t{1} << 32 ? head<uint32_t>(0xce, value) : head<uint64_t>(0xcf, value);
    }
    if (value >= -(1 << 5)) return byte(static_cast<uint8_t>(value));
    if (value >= -(1 << 7)) return head<uint8_t>(0xd0, value);
    if (value >= -(1 << 15)) return head<uint16_t>(0xd1, value);
    return value >= -(int64_t{1} << 31) ? head<uint32_t>(0xd2, value) : head<uint64_t>(0xd3, value);
  }
  Packer& numbers(const int64_t* values, size_t count) {
    for (size_t at = 0; at < count; ++at) number(values[at]);
    return *this;
  }
  Packer& text(const char* text) {
    const size_t size = std::strlen(text);
    if (size < 32) byte(0xa0 | size);
    else if (size < 1 << 8) head<uint8_t>(0xd9, size);
    else if (size < 1 << 16) head<uint16_t>(0xda, size);
    else head<uint32_t>(0xdb, size);
    bytes_.append(text, size);
    return *this;
  }
  Packer& truth(bool value) { return byte(value ? 0xc3 : 0xc2); }
  Packer& none() { return byte(0xc0); }
  // So many fields follow.
  Packer& record(Record which, size_t fields) { return array(fields + 1).number(which); }

 private:
  std::string& bytes_;

  Packer& byte(uint64_t value) {
    bytes_.push_back(static_cast<char>(value));
    return *this;
  }
  template <typename Unsigned, typename Value>
  Packer& head(int kind, Value value) {
    char made[1 + sizeof(Unsigned)] = {static_cast<char>(kind)};
    auto rest = static_cast<Unsigned>(value);
    for (size_t at = sizeof(Unsigned); at > 0; --at, rest = static_cast<Unsigned>(static_cast<uint64_t>(rest) >> 8))
      made[at] = static_cast<char>(rest & 0xff);
    bytes_.append(made, sizeof made);
    return *this;
  }
};

void accesses(Packer& to, const int64_t* words, int64_t count) {
  to.array(static_cast<size_t>(count));
  for (; count > 0; --count, words += 4) {
    to.array(4).numbers(words, 3);
    if (words[3] == 0) {
      to.none();
      continue;
    }
    const auto& layout = trace().layout(words[3]);  // an item's bytes, then size, stride, ...
    const size_t dims = (layout.size() - 1) / 2;
    to.array(3).number(layout[0]);
    for (size_t first : {1, 2}) {
      to.array(dims);
      for (size_t dim = 0; dim < dims; ++dim) to.number(layout[first + 2 * dim]);
    }
  }
}

void launch(Packer& to, const int64_t* words) {
  const int64_t reads = words[8], writes = words[9];
  to.record(kLaunchRecord, 10).numbers(words, 2).text(name_of(words[2]));
  accesses(to, words + 10, reads);
  accesses(to, words + 10 + 4 * reads, writes);
  to.numbers(words + 3, 5);
}

// False where the rest of the record is known in Python.
bool pack_one(Packer& to, Kind kind, const int64_t* words) {
  switch (kind) {
    case Kind::kLaunch: launch(to, words); return true;
    case Kind::kAlloc:
      to.record(kAllocRecord, 6).numbers(words, 2).number(words[2] == kHostStream ? -1 : words[2]).number(words[3]).text("uint8").number(words[4]);
      return true;
    case Kind::kFree: to.record(kFreeRecord, 4).numbers(words, 2).truth(false).truth(true); return true;
    case Kind::kReuse: to.record(kReuseRecord, 7).numbers(words, 6).truth(words[6] != 0); return true;
    case Kind::kRecordStream: to.record(kRecordStreamRecord, 2).numbers(words, 2); return true;
    case Kind::kRecord: to.record(kRecordRecord, 2).numbers(words, 2); return true;
    case Kind::kWait: to.record(kWaitRecord, 3).numbers(words, 3); return true;
    case Kind::kHostWait: to.record(kHostWaitRecord, 5).number(words[0]).text(kHow[words[1]]).numbers(words + 2, 3); return true;
    case Kind::kHostStep: {
      const bool asked = words[0] == static_cast<int64_t>(How::kAsked);  // then it is a marker, else a stream
      to.record(kHostStepRecord, 4).text(kHow[words[0]]).number(words[1]);
      to.number(asked ? -1 : words[2]).number(asked ? words[2] : -1);
      return true;
    }
    case Kind::kExport: to.record(kExportRecord, 4).number(words[0]).text(name_of(words[1])).numbers(words + 2, 2); return true;
    default: return false;
  }
}

}  // namespace

void pack(const int64_t* words, int64_t count, int64_t& at, Packed& packed) {
  packed = {};
  Packer to(packed.bytes);
  while (at < count && pack_one(to, static_cast<Kind>(words[at]), words + at + 2)) {
    if (static_cast<Kind>(words[at]) == Kind::kLaunch) ++packed.operations, packed.op = words[at + 2];
    at += 2 + words[at + 1];
  }
}

}  // namespace simgpu
