// Measures how fast threads read memory that no cache holds: `read_bandwidth THREADS` prints the
// best of several ways in GB/s (10^9 bytes). Built with -O3 -march=native, so that loads are as
// wide as the processor has them.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { kMaxThreads = 256, kRepeats = 5, kMaxStreams = 8 };
static const size_t kBytes = (size_t)1 << 29;

struct Part {
  const uint64_t* begin;
  size_t num_words;
  int num_streams;
  uint64_t sum;
};

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

// Reads a part as `num_streams` streams side by side, a few cache lines of each in turn.
static void* read_part(void* argument) {
  struct Part* part = argument;
  const size_t length = part->num_words / part->num_streams;
  uint64_t sums[32] = {0};
  for (size_t i = 0; i + 32 <= length; i += 32) {
    for (int stream = 0; stream < part->num_streams; ++stream) {
      const uint64_t* at = part->begin + stream * length + i;
      __builtin_prefetch(at + 512);
      __builtin_prefetch(at + 520);
      __builtin_prefetch(at + 528);
      __builtin_prefetch(at + 536);
      for (int word = 0; word < 32; ++word) {
        sums[word] += at[word];
      }
    }
  }
  for (int word = 0; word < 32; ++word) {
    part->sum += sums[word];
  }
  return NULL;
}

static double best_gbs(const uint64_t* memory, int num_threads, int num_streams) {
  double best_s = 1e9;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    pthread_t threads[kMaxThreads];
    struct Part parts[kMaxThreads];
    const size_t num_words = kBytes / sizeof(uint64_t) / num_threads;
    const double begin_s = now_s();
    for (int i = 0; i < num_threads; ++i) {
      parts[i] = (struct Part){memory + i * num_words, num_words, num_streams, 0};
      if (pthread_create(&threads[i], NULL, read_part, &parts[i]) != 0) {
        perror("pthread_create");
        exit(1);
      }
    }
    volatile uint64_t sum = 0;
    for (int i = 0; i < num_threads; ++i) {
      pthread_join(threads[i], NULL);
      sum += parts[i].sum;
    }
    const double seconds = now_s() - begin_s;
    best_s = seconds < best_s ? seconds : best_s;
  }
  return kBytes / best_s / 1e9;
}

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? atoi(argv[1]) : 1;
  if (num_threads < 1 || num_threads > kMaxThreads) {
    fprintf(stderr, "THREADS is %d, but has to be 1 to %d\n", num_threads, kMaxThreads);
    return 2;
  }
  double best = 0;
  for (int huge = 0; huge < 2; ++huge) {
    void* memory =
        mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      perror("mmap");
      return 1;
    }
    madvise(memory, kBytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(memory, 1, kBytes);
    for (int num_streams = 1; num_streams <= kMaxStreams; num_streams *= 2) {
      const double found = best_gbs(memory, num_threads, num_streams);
      best = found > best ? found : best;
    }
    munmap(memory, kBytes);
  }
  printf("%.2f\n", best);
  return 0;
}
