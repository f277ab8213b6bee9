// A log of the library calls that make order, one line a call, in the file that STREAMRACE_REAL_BUILD_LOG names. Both
// fake libraries append to that file, each line by one write, so lines of several threads do not mix.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

inline int log_file() {
  static const int file = [] {
    const char* path = getenv("STREAMRACE_REAL_BUILD_LOG");
    return path == nullptr || *path == 0 ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }();
  return file;
}

__attribute__((format(printf, 1, 2))) inline void log_call(const char* format, ...) {
  if (log_file() < 0) return;
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  if (length > static_cast<int>(sizeof line) - 2) length = sizeof line - 2;
  line[length] = '\n';
  if (write(log_file(), line, length + 1) < 0) abort();
}
