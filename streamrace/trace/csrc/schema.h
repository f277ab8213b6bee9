// The layout of a trace. Made by `python -m streamrace.trace`, of records.py and schema.py.
#pragma once

#include <cstdint>

namespace schema {

inline constexpr int64_t kHost = 65;
enum class How : int64_t { kSynchronize, kRead, kQuery, kAsked, kCopy, kMet };
inline constexpr const char* kHow[] = {"synchronize", "read", "query", "asked", "copy", "met"};
enum class WordKind : int64_t {
  kAlloc, kFree, kRecordStream, kLaunch, kCollective, kRecord, kWait, kHostWait, kHostStep, kStreamName, kLayout, kReuse, kExport, kMark, kDefine, kCall, kInitial, kUnrepeatable
};
enum Code {
  kBegin, kStack, kStreamName, kGroup, kPhase, kAlloc, kFree, kRecordStream, kLabel, kLaunch, kCollective, kRecord, kWait, kHostWait, kEnd, kHostStep, kCall, kTransfer, kInitial, kProbe, kProbed, kUnrepeatable, kSeal, kReuse, kExport, kAsked, kOnward, kCodes
};

struct Access { enum : int { block, lo, hi, layout, fields }; };
struct Begin { enum : int { format, version, rank, world, info, fields }; };
struct Stack { enum : int { id, frames, fields }; };
struct StreamName { enum : int { stream, name, fields }; };
struct Group { enum : int { group, ranks, origin, fields }; };
struct Phase { enum : int { step, micro_batch, name, fields }; };
struct Alloc { enum : int { block, nbytes, stream, time, dtype, stack, fields }; };
struct Free { enum : int { block, time, poisoned, quiet, fields }; };
struct RecordStream { enum : int { block, stream, fields }; };
struct Label { enum : int { block, lo, hi, kind, name, fields }; };
struct Launch { enum : int { op, stream, kernel, reads, writes, stack, issued, start, end, nominal, fields }; };
struct Collective { enum : int { op, stream, kernel, reads, writes, stack, issued, start, end, group, number, root, issuer, nominal, alone, link, fields }; };
struct Record { enum : int { marker, stream, fields }; };
struct Wait { enum : int { stream, marker, stack, fields }; };
struct HostWait { enum : int { marker, how, stack, time, began, fields }; };
struct End { enum : int { time, fields }; };
struct HostStep { enum : int { how, time, stream, marker, fields }; };
struct Call { enum : int { op, function, args, kwargs, outputs, places, dtype, random, host, result, fields }; };
struct Transfer { enum : int { op, inputs, outputs, reduction, splits, scale, fields }; };
struct Initial { enum : int { block, data, fields }; };
struct Probe { enum : int { probe, kind, name, view, stream, fields }; };
struct Probed { enum : int { probe, checksum, fields }; };
struct Unrepeatable { enum : int { reason, fields }; };
struct Seal { enum : int { digest, fields }; };
struct Reuse { enum : int { block, former, lo, hi, start, stack, last, fields }; };
struct Export { enum : int { block, how, stack, time, fields }; };
struct Asked { enum : int { operation, file, line, function, stream, block, fields }; };
struct Onward { enum : int { part, operations, op, fields }; };

// Writes the record of these words; false where it takes more than its words.
template <typename To>
bool pack(To& to, WordKind kind, const int64_t* words) {
  switch (kind) {
    case WordKind::kAlloc: to.record(kAlloc, 6).number(words[0]).number(words[1]).stream(words[2]).number(words[3]).text("uint8").number(words[4]); return true;
    case WordKind::kFree: to.record(kFree, 4).number(words[0]).number(words[1]).truth(false).truth(true); return true;
    case WordKind::kRecordStream: to.record(kRecordStream, 2).number(words[0]).number(words[1]); return true;
    case WordKind::kRecord: to.record(kRecord, 2).number(words[0]).number(words[1]); return true;
    case WordKind::kWait: to.record(kWait, 3).number(words[0]).number(words[1]).number(words[2]); return true;
    case WordKind::kHostWait: to.record(kHostWait, 5).number(words[0]).how(words[1]).number(words[2]).number(words[3]).number(words[4]); return true;
    case WordKind::kHostStep: to.record(kHostStep, 4).how(words[0]).number(words[1]).number(words[2]).number(words[3]); return true;
    case WordKind::kReuse: to.record(kReuse, 7).number(words[0]).number(words[1]).number(words[2]).number(words[3]).number(words[4]).number(words[5]).truth(words[6]); return true;
    case WordKind::kExport: to.record(kExport, 4).number(words[0]).name(words[1]).number(words[2]).number(words[3]); return true;
    default: return false;
  }
}

}  // namespace schema
