// One GPU, one libtorch module, many threads: which part of a batch's upload, forward pass and download belongs under
// the lock? Five orders, each with batches in ordinary and in pinned memory, and each with the conversion of f32 NCHW to
// f16 channels last in one call, as such programs write it, and on the device after the upload.
//
//   forum MODULE.pt THREADS BATCH SECONDS CHANNELS HEIGHT WIDTH
//
// Prints a JSON object a line for each row. Every answer of a thread is that of its own batch: the last one is compared
// with the answer of a run of one batch at a time.
#include <torch/cuda.h>
#include <torch/script.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using torch::Tensor;

// Relative to the largest logit: fp16 rounding stays far below it, another batch's answer does not.
constexpr double kAgree = 0.02;
constexpr double kWarmUp = 0.3;  // of the seconds measured, beforehand

struct Row {
  int order;            // 1 to 5
  bool pinned;          // where the batches lie
  bool on_device;       // where f32 becomes f16 and NCHW becomes NHWC
};

struct Setting {
  torch::jit::Module module;
  int threads;
  int batch;
  double seconds;
  std::vector<Tensor> batches;    // one for each thread: f32 [batch, C, H, W], ordinary memory
  std::vector<Tensor> expected;   // f32 logits [batch, classes]
};

Tensor upload(const Tensor& x, const Row& row, bool non_blocking) {
  const torch::Device gpu(torch::kCUDA);
  if (row.on_device) {
    return x.to(gpu, non_blocking).to(torch::kHalf, false, false, torch::MemoryFormat::ChannelsLast);
  }
  return x.to(gpu, torch::kHalf, non_blocking, false, torch::MemoryFormat::ChannelsLast);
}

Tensor forward(Setting& setting, const Tensor& on_gpu) { return setting.module.forward({on_gpu}).toTensor(); }

Tensor download(const Tensor& y) { return y.to(torch::kCPU, torch::kFloat); }

// One batch of one thread. The lock is shared by all.
Tensor turn(Setting& setting, const Tensor& x, const Row& row, std::mutex& lock) {
  switch (row.order) {
    case 1: {  // upload | lock: forward, synchronise, download
      const Tensor on_gpu = upload(x, row, false);
      std::lock_guard<std::mutex> held(lock);
      const Tensor y = forward(setting, on_gpu);
      torch::cuda::synchronize();
      return download(y);
    }
    case 2: {  // upload | lock: forward, synchronise | download
      const Tensor on_gpu = upload(x, row, false);
      Tensor y;
      {
        std::lock_guard<std::mutex> held(lock);
        y = forward(setting, on_gpu);
        torch::cuda::synchronize();
      }
      return download(y);
    }
    case 3: {  // lock: upload, forward, synchronise, download
      std::lock_guard<std::mutex> held(lock);
      const Tensor y = forward(setting, upload(x, row, false));
      torch::cuda::synchronize();
      return download(y);
    }
    case 4: {  // upload that does not wait | lock: forward, synchronise, download
      const Tensor on_gpu = upload(x, row, true);
      std::lock_guard<std::mutex> held(lock);
      const Tensor y = forward(setting, on_gpu);
      torch::cuda::synchronize();
      return download(y);
    }
    default:  // 5: no lock, nothing waits but the download
      return download(forward(setting, upload(x, row, true)));
  }
}

bool agree(const Tensor& a, const Tensor& b) {
  const double off = (a - b).abs().max().item<double>();
  return off <= kAgree * b.abs().max().item<double>();  // false for NaN
}

void check(const Tensor& got, const Tensor& expected, const Row& row) {
  if (!agree(got, expected)) {
    throw std::runtime_error("order " + std::to_string(row.order) + ": not the answer of a run of one batch at a time");
  }
}

// Images a second, from the first answer behind the warm-up to the last one in time.
double measure(Setting& setting, const Row& row) {
  std::mutex lock, answered_lock;
  std::vector<double> answered;
  std::vector<std::string> errors;
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  Clock::time_point start;
  const double end = (1 + kWarmUp) * setting.seconds;
  const auto work = [&](int thread) {
    try {
      torch::InferenceMode guard;
      Tensor x = setting.batches[thread];
      if (row.pinned) x = x.pin_memory();
      Tensor y = turn(setting, x, row, lock);
      ready++;
      while (!go) std::this_thread::yield();
      std::vector<double> own;
      for (;;) {
        y = turn(setting, x, row, lock);
        const double now = std::chrono::duration<double>(Clock::now() - start).count();
        if (now >= end) break;
        if (now >= kWarmUp * setting.seconds) own.push_back(now);
      }
      check(y, setting.expected[thread], row);
      std::lock_guard<std::mutex> held(answered_lock);
      answered.insert(answered.end(), own.begin(), own.end());
    } catch (const std::exception& error) {
      ready++;
      std::lock_guard<std::mutex> held(answered_lock);
      errors.push_back(error.what());
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < setting.threads; thread++) threads.emplace_back(work, thread);
  while (ready < setting.threads) std::this_thread::yield();
  torch::cuda::synchronize();
  start = Clock::now();
  go = true;
  for (auto& thread : threads) thread.join();
  if (!errors.empty()) throw std::runtime_error(errors[0]);
  std::sort(answered.begin(), answered.end());
  if (answered.size() < 2) throw std::runtime_error("fewer than two batches were answered: measure longer");
  return setting.batch * (answered.size() - 1) / (answered.back() - answered.front());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) {
    std::fprintf(stderr, "usage: forum MODULE.pt THREADS BATCH SECONDS CHANNELS HEIGHT WIDTH\n");
    return 64;
  }
  try {
    torch::InferenceMode guard;
    Setting setting{torch::jit::load(argv[1], torch::kCUDA), std::atoi(argv[2]), std::atoi(argv[3]), std::atof(argv[4]),
                    {}, {}};
    at::manual_seed(1);
    std::mutex alone;
    const int channels = std::atoi(argv[5]);
    for (int thread = 0; thread < setting.threads; thread++) {
      // Each image has colours of its own: noise alone looks the same to a network, whatever the image.
      const Tensor noise = torch::randn({setting.batch, channels, std::atoi(argv[6]), std::atoi(argv[7])});
      setting.batches.push_back(noise + 4 * torch::rand({setting.batch, channels, 1, 1}) - 2);
      // Twice: the first runs of a module are those in which it is still being optimised.
      for (int run = 0; run < 2; run++) turn(setting, setting.batches.back(), Row{3, false, false}, alone);
      setting.expected.push_back(turn(setting, setting.batches.back(), Row{3, false, false}, alone));
    }
    for (int thread = 1; thread < setting.threads; thread++) {
      const Tensor &a = setting.expected[thread - 1], &b = setting.expected[thread];
      if (agree(a, b)) throw std::runtime_error("different batches with nearly the same answer: nothing could be checked");
    }
    for (const bool on_device : {false, true}) {
      for (const bool pinned : {false, true}) {
        for (int order = 1; order <= 5; order++) {
          const Row row{order, pinned, on_device};
          std::printf(
              "{\"order\": %d, \"start\": \"%s\", \"converted\": \"%s\", \"upload\": true, \"images_per_second\": %.1f}\n",
              order, pinned ? "page-locked" : "pageable", on_device ? "on-device" : "in-one-call",
              measure(setting, row));
          std::fflush(stdout);
        }
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "forum: %s\n", error.what());
    return 1;
  }
  std::_Exit(0);  // all is printed and flushed; libtorch's own statics have been seen to abort when they are destroyed
}
