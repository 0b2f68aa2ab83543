// trefoil for C++17: trefoil.h with owning, move-only types and exceptions.
//
//     trefoil::model model("weights/efficientnet-lite0");
//     trefoil::engine engine(model);                       // a GPU if there is one, else the CPU
//     trefoil::batch batch = engine.acquire();             // page-locked memory
//     decode("cat.jpg", batch.row(0));
//     trefoil::output output = std::move(batch).submit(1).wait();
//     for (auto [value, index] : output.top_k<5>(0)) std::cout << model.label(index) << ' ' << value << '\n';
//
// A model that is no network of images has rows of named ports:
//
//     const trefoil::port ids = engine.input_port("input_ids"), logits = engine.output_port("logits");
//     encode(text, batch.port<std::int64_t>(0, ids.index)); // throws if its elements are of another type
//     for (float logit : output.port<float>(0, logits.index)) std::cout << logit << '\n';
//
// A call that fails throws trefoil::error; batch::row() throws std::out_of_range for a row that the batch does not
// have, and output::values() std::logic_error for rows of TREFOIL_RESULT_TOP_K. No call between acquire() and the end
// of an output allocates, unless it throws. Moving an object moves its handle. An object that was moved from, or that a
// call such as submit() has consumed, is empty, and using it throws. Any number of threads may use a const reference to
// an engine or batcher.

#ifndef TREFOIL_HPP
#define TREFOIL_HPP

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "trefoil.h"

namespace trefoil {

/// A call that failed: its status, and what() in English.
class error : public std::runtime_error {
public:
    error(trefoil_status status, const char *message)
        : std::runtime_error(message), status_(status), reaches_(trefoil_last_error_class()) {}
    /// The error of NOT_READY, which has no message.
    error() : std::runtime_error("not ready"), status_(TREFOIL_STATUS_NOT_READY), reaches_(TREFOIL_FAULT_CLASS_REQUEST) {}
    trefoil_status status() const noexcept { return status_; }
    /// How far the failure reaches: this request, the device, or the process.
    trefoil_fault_class reaches() const noexcept { return reaches_; }

private:
    trefoil_status status_;
    trefoil_fault_class reaches_;
};

inline void check(trefoil_status status) {
    if (status == TREFOIL_STATUS_NOT_READY) throw error();
    if (status != TREFOIL_STATUS_OK) throw error(status, trefoil_last_error());
}

/// Checks that the loaded library can run programs that were compiled with this header, and throws if it cannot. Call
/// it first.
inline void check_abi() { check(trefoil_check_abi(TREFOIL_ABI_MAJOR, TREFOIL_ABI_MINOR)); }

/// Elements somewhere in memory.
template <class T>
class span {
public:
    span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + size_; }
    T &operator[](std::size_t index) const noexcept { return data_[index]; }

private:
    T *data_;
    std::size_t size_;
};

/// Owns a handle, and releases it.
class handle {
public:
    handle() noexcept = default;
    explicit handle(std::uint64_t raw) noexcept : raw_(raw) {}
    handle(handle &&other) noexcept : raw_(std::exchange(other.raw_, 0)) {}
    handle &operator=(handle &&other) noexcept {
        const handle old(std::exchange(raw_, std::exchange(other.raw_, 0)));
        return *this;
    }
    ~handle() {
        if (raw_ != 0) trefoil_release(raw_);
    }
    /// The number, for the functions of trefoil.h; 0 if empty.
    std::uint64_t get() const noexcept { return raw_; }
    explicit operator bool() const noexcept { return raw_ != 0; }

protected:
    /// Forgets a handle that a call has consumed.
    void used_up() noexcept { raw_ = 0; }

private:
    std::uint64_t raw_ = 0;
};

/// The bits of an IEEE half, and of the upper half of an IEEE single.
struct f16 {
    std::uint16_t bits;
};
struct bf16 {
    std::uint16_t bits;
};

/// The trefoil_dtype of elements of type T.
template <class T>
inline constexpr trefoil_dtype dtype_of = T::is_no_element_type;
template <>
inline constexpr trefoil_dtype dtype_of<bool> = TREFOIL_DTYPE_BOOL;
template <>
inline constexpr trefoil_dtype dtype_of<std::uint8_t> = TREFOIL_DTYPE_U8;
template <>
inline constexpr trefoil_dtype dtype_of<std::uint16_t> = TREFOIL_DTYPE_U16;
template <>
inline constexpr trefoil_dtype dtype_of<std::uint32_t> = TREFOIL_DTYPE_U32;
template <>
inline constexpr trefoil_dtype dtype_of<std::uint64_t> = TREFOIL_DTYPE_U64;
template <>
inline constexpr trefoil_dtype dtype_of<std::int8_t> = TREFOIL_DTYPE_I8;
template <>
inline constexpr trefoil_dtype dtype_of<std::int16_t> = TREFOIL_DTYPE_I16;
template <>
inline constexpr trefoil_dtype dtype_of<std::int32_t> = TREFOIL_DTYPE_I32;
template <>
inline constexpr trefoil_dtype dtype_of<std::int64_t> = TREFOIL_DTYPE_I64;
template <>
inline constexpr trefoil_dtype dtype_of<f16> = TREFOIL_DTYPE_F16;
template <>
inline constexpr trefoil_dtype dtype_of<bf16> = TREFOIL_DTYPE_BF16;
template <>
inline constexpr trefoil_dtype dtype_of<float> = TREFOIL_DTYPE_F32;
template <>
inline constexpr trefoil_dtype dtype_of<double> = TREFOIL_DTYPE_F64;
static_assert(sizeof(bool) == 1);

/// A description of a port of an engine's rows, with its number for batch::port(), row::port() and output::port().
struct port : trefoil_port {
    std::size_t index;
};

/// A size of an engine, or of a request: the number of rows in a batch, and sizes of free dimensions by name; see
/// trefoil_size.
struct sized {
    std::size_t batch = 1;
    std::vector<std::pair<std::string, std::size_t>> dims;
};

/// Options with `size` set; the members are those of the C structs, which say what zeros mean.
struct engine_options : trefoil_engine_options {
    engine_options() noexcept : trefoil_engine_options{} { size = sizeof(trefoil_engine_options); }
};
struct batcher_options : trefoil_batcher_options {
    batcher_options() noexcept : trefoil_batcher_options{} { size = sizeof(trefoil_batcher_options); }
};
struct row_options : trefoil_row_options {
    row_options() noexcept : trefoil_row_options{} { size = sizeof(trefoil_row_options); }
};

namespace detail {

/// Calls a function that fills a struct.
template <class Info, class Function>
Info ask(Function function, std::uint64_t handle) {
    Info info{};
    info.size = sizeof info;
    check(function(handle, &info));
    return info;
}

/// A size as a C struct, which points into this object and into the size that it was made from.
class raw_size {
public:
    explicit raw_size(const sized &of) {
        for (const auto &[name, value] : of.dims) names_.push_back(name.c_str()), values_.push_back(value);
        raw_ = {sizeof raw_, of.batch, names_.data(), values_.data(), names_.size()};
    }
    raw_size(const raw_size &) = delete;
    raw_size &operator=(const raw_size &) = delete;
    const trefoil_size *get() const noexcept { return &raw_; }

private:
    std::vector<const char *> names_;
    std::vector<std::size_t> values_;
    trefoil_size raw_;
};

/// Describes a port of a batch, row or output.
template <class Function>
port describe(Function function, std::uint64_t handle, std::size_t index) {
    port found{};
    found.size = sizeof(trefoil_port);
    found.index = index;
    check(function(handle, index, &found));
    return found;
}

inline std::uint64_t nanoseconds(std::chrono::nanoseconds time) noexcept {
    return time.count() < 0 ? 0 : static_cast<std::uint64_t>(time.count());
}

} // namespace detail

/// A device, which engines may share.
class device : public handle {
public:
    /// `auto`, `cpu` or `cuda:N`.
    explicit device(const char *target = "auto") : handle(open(target)) {}
    explicit device(std::uint64_t raw) noexcept : handle(raw) {}
    /// The CPU with a number of compute threads, 1 to 1024.
    static device cpu(std::size_t threads) {
        trefoil_device raw = 0;
        check(trefoil_device_open_cpu(threads, &raw));
        return device(raw);
    }
    /// The GPU of a CUcontext that the program made, see trefoil_device_open_context().
    static device in_context(void *context) {
        trefoil_device raw = 0;
        check(trefoil_device_open_context(context, &raw));
        return device(raw);
    }
    /// Whether nothing is left on the device except this handle.
    bool is_unused() const {
        const trefoil_status status = trefoil_device_is_unused(get());
        if (status == TREFOIL_STATUS_NOT_READY) return false;
        check(status);
        return true;
    }
    trefoil_device_info info() const { return detail::ask<trefoil_device_info>(trefoil_device_get_info, get()); }
    /// Throws the fault that put the device out of use, if there is one.
    void health() const { check(trefoil_device_health(get())); }

private:
    static std::uint64_t open(const char *target) {
        trefoil_device raw = 0;
        check(trefoil_device_open(target, &raw));
        return raw;
    }
};

/// A model: graph, weights and labels.
class model : public handle {
public:
    explicit model(const char *path) : handle(open(path)) {}
    explicit model(const std::string &path) : model(path.c_str()) {}
    explicit model(std::uint64_t raw) noexcept : handle(raw) {}
    /// Opens an ONNX file at sizes of its free dimensions, or a folder at `height` and `width`, at `sequence`, or at
    /// `tokens` and `rows`; see trefoil_model_open_at().
    static model at(const std::string &path, const std::vector<std::pair<std::string, std::size_t>> &sizes) {
        std::vector<const char *> names;
        std::vector<std::size_t> values;
        for (const auto &[name, value] : sizes) names.push_back(name.c_str()), values.push_back(value);
        trefoil_model raw = 0;
        check(trefoil_model_open_at(path.c_str(), names.data(), values.data(), sizes.size(), &raw));
        return model(raw);
    }
    /// The model at other sizes of its free dimensions, such as `height` and `width`; see trefoil_model_at().
    model at(const sized &wanted) const {
        trefoil_model raw = 0;
        check(trefoil_model_at(get(), detail::raw_size(wanted).get(), &raw));
        return model(raw);
    }
    /// The model cut at a node or module, such as `layer4`: its result is that node's value.
    model cut(const char *node) const {
        trefoil_model raw = 0;
        check(trefoil_model_cut(get(), node, &raw));
        return model(raw);
    }
    /// The model with the declaration that rows may be shorter than a size along `dim`, and with the numbers that fill
    /// up these inputs; see trefoil_model_padded().
    model padded(const char *dim, const std::vector<std::pair<std::string, double>> &inputs) const {
        std::vector<const char *> names;
        std::vector<double> values;
        for (const auto &[name, value] : inputs) names.push_back(name.c_str()), values.push_back(value);
        trefoil_model raw = 0;
        check(trefoil_model_padded(get(), dim, names.data(), values.data(), inputs.size(), &raw));
        return model(raw);
    }
    /// The model with an input as a state: its value is the value of the output in the previous batch; see
    /// trefoil_model_with_state().
    model with_state(const char *input, const char *output) const {
        trefoil_model raw = 0;
        check(trefoil_model_with_state(get(), input, output, &raw));
        return model(raw);
    }
    trefoil_model_info info() const { return detail::ask<trefoil_model_info>(trefoil_model_get_info, get()); }
    std::string label(std::size_t index) const {
        return text([&](char *to, std::size_t capacity, std::size_t *length) {
            return trefoil_model_label(get(), index, to, capacity, length);
        });
    }
    /// The text that the ONNX file has under a key.
    std::string metadata(const char *key) const {
        return text([&](char *to, std::size_t capacity, std::size_t *length) {
            return trefoil_model_metadata(get(), key, to, capacity, length);
        });
    }

private:
    template <class Copy>
    static std::string text(Copy copy) {
        std::size_t length = 0;
        check(copy(nullptr, 0, &length));
        std::string text(length + 1, '\0');
        check(copy(&text[0], text.size(), nullptr));
        text.resize(length);
        return text;
    }
    static std::uint64_t open(const char *path) {
        trefoil_model raw = 0;
        check(trefoil_model_open(path, &raw));
        return raw;
    }
};

/// At most K classes, best first.
template <std::size_t K>
class classes {
public:
    const trefoil_scored_class *begin() const noexcept { return best_.data(); }
    const trefoil_scored_class *end() const noexcept { return best_.data() + size_; }
    std::size_t size() const noexcept { return size_; }
    const trefoil_scored_class &operator[](std::size_t rank) const noexcept { return best_[rank]; }

private:
    friend class output;
    std::array<trefoil_scored_class, K> best_{};
    std::size_t size_ = 0;
};

/// A result, which the program reads in place. Destroying it frees its memory for later batches.
class output : public handle {
public:
    output() noexcept = default;
    explicit output(std::uint64_t raw) noexcept : handle(raw) {}
    std::size_t rows() const {
        std::size_t rows = 0;
        check(trefoil_output_rows(get(), &rows));
        return rows;
    }
    /// The elements of a port of a row, by the port's number. Throws if the elements are not of type T.
    template <class T>
    span<const T> port(std::size_t row, std::size_t index) const {
        const void *at = nullptr;
        std::size_t bytes = 0;
        check(trefoil_output_port(get(), row, index, dtype_of<T>, &at, &bytes));
        return {static_cast<const T *>(at), bytes / sizeof(T)};
    }
    /// Describes a port of the rows, by its number.
    trefoil::port describe_port(std::size_t index) const {
        return detail::describe(trefoil_output_describe_port, get(), index);
    }
    /// The numbers of a row: probabilities, logits or features, or the first port of a model of values. Throws
    /// std::logic_error for TREFOIL_RESULT_TOP_K, whose rows are pairs, which top_k() reads.
    span<const float> values(std::size_t row) const {
        std::uint32_t result = 0;
        check(trefoil_output_result(get(), &result));
        if (result == TREFOIL_RESULT_TOP_K) throw std::logic_error("trefoil: rows of TOP_K are read with top_k()");
        return port<float>(row, 0);
    }
    template <std::size_t K>
    classes<K> top_k(std::size_t row) const {
        classes<K> best;
        check(trefoil_output_top_k(get(), row, best.best_.data(), K, &best.size_));
        return best;
    }
};

/// A result that stays on the device and may not be computed yet. Its memory is used again when the object is destroyed
/// and the streams that read_on() has named are done.
class device_output : public handle {
public:
    device_output() noexcept = default;
    explicit device_output(std::uint64_t raw) noexcept : handle(raw) {}
    /// The address of the result, and its event.
    trefoil_device_output_info info() const {
        return detail::ask<trefoil_device_output_info>(trefoil_device_output_get_info, get());
    }
    /// Makes work that is enqueued on a CUstream from now on wait for the result; on the CPU, with null, this thread
    /// waits.
    void wait_on(void *stream) const { check(trefoil_device_output_wait_on(get(), stream)); }
    /// Declares that work that is enqueued on a CUstream so far reads the result.
    void read_on(void *stream) const { check(trefoil_device_output_read_on(get(), stream)); }
    /// Blocks until the result is there.
    void wait() const { check(trefoil_device_output_wait(get())); }
    /// Whether wait() would return at once, with the result or with a failure. Never blocks.
    bool is_ready() const {
        const trefoil_status status = trefoil_device_output_is_ready(get());
        if (status == TREFOIL_STATUS_NOT_READY) return false;
        check(status);
        return true;
    }
};

/// A submission in flight. Destroying it abandons the result.
class ticket : public handle {
public:
    ticket() noexcept = default;
    explicit ticket(std::uint64_t raw) noexcept : handle(raw) {}
    output wait() && {
        trefoil_output raw = 0;
        const trefoil_status status = trefoil_wait(get(), &raw);
        if (status != TREFOIL_STATUS_BUSY && status != TREFOIL_STATUS_IN_CALLBACK) used_up();
        check(status);
        return output(raw);
    }
    /// The output, or nothing after the limit; then the ticket stays valid.
    std::optional<output> wait_for(std::chrono::nanoseconds limit) {
        trefoil_output raw = 0;
        const trefoil_status status = trefoil_wait_for(get(), detail::nanoseconds(limit), &raw);
        if (status == TREFOIL_STATUS_NOT_READY) return std::nullopt;
        if (status != TREFOIL_STATUS_BUSY) used_up();
        check(status);
        return output(raw);
    }
    /// Whether wait() would return at once, with the result or with a failure; see trefoil_is_ready(). Never blocks.
    bool is_ready() const {
        const trefoil_status status = trefoil_is_ready(get());
        if (status == TREFOIL_STATUS_NOT_READY) return false;
        check(status);
        return true;
    }
    /// Registers `callback(status, output)`, which is called once, on a thread of the library; the output is empty if
    /// the status is not OK. `callback` lives until it has returned, and an exception from it ends the program. No call
    /// waits within it: see trefoil_on_ready(). If on_ready() throws, the ticket stays valid and the callback is never
    /// called.
    template <class F>
    void on_ready(F &callback) && {
        const auto call = [](void *user, trefoil_status status, trefoil_output raw) noexcept {
            (*static_cast<F *>(user))(status, output(raw));
        };
        const std::uint64_t raw = get();
        used_up(); // before the callback can run: it may end the life of this very object
        const trefoil_status status =
            trefoil_on_ready(raw, call, const_cast<void *>(static_cast<const void *>(std::addressof(callback))));
        if (status == TREFOIL_STATUS_OK) return;
        handle::operator=(handle(raw));
        check(status);
    }
};

/// A batch of rows in page-locked memory to be filled. If it is destroyed without submit(), the rows are free again.
class batch : public handle {
public:
    batch() noexcept = default;
    explicit batch(std::uint64_t raw) : handle(raw) {
        const auto info = detail::ask<trefoil_batch_info>(trefoil_batch_get_info, raw);
        row_pitch_ = info.row_pitch, capacity_ = info.capacity;
        void *at = nullptr;
        check(trefoil_batch_row(raw, 0, &at, &row_bytes_));
        first_ = static_cast<std::uint8_t *>(at);
    }
    std::size_t capacity() const noexcept { return capacity_; }
    /// The bytes of a row, to be written until submit().
    span<std::uint8_t> row(std::size_t index) const {
        if (!*this || index >= capacity_) throw std::out_of_range("trefoil: no such row of a batch");
        return {first_ + index * row_pitch_, row_bytes_};
    }
    /// The elements of a port of a row, by the port's number, to be written until submit(). Throws if the elements are
    /// not of type T.
    template <class T>
    span<T> port(std::size_t row, std::size_t index) const {
        void *at = nullptr;
        std::size_t bytes = 0;
        check(trefoil_batch_port(get(), row, index, dtype_of<T>, &at, &bytes));
        return {static_cast<T *>(at), bytes / sizeof(T)};
    }
    /// Copies the elements of a port of a row; if there are fewer than the port has, the padding of model::padded()
    /// follows.
    template <class T>
    void write_port(std::size_t row, std::size_t index, const T *elements, std::size_t count) const {
        check(trefoil_batch_write_port(get(), row, index, dtype_of<T>, elements, count * sizeof(T)));
    }
    /// Describes a port of the rows, by its number.
    trefoil::port describe_port(std::size_t index) const {
        return detail::describe(trefoil_batch_describe_port, get(), index);
    }
    /// Makes the batch take its rows from device memory, on a CUstream that writes them and lives until the batch is
    /// submitted or destroyed; `row_pitch` is 0 if there are no gaps between rows. Throws for a fleet's batch.
    void read_from(const void *address, void *stream, std::size_t row_pitch = 0) const {
        trefoil_device_rows rows{};
        rows.size = sizeof rows;
        rows.address = address;
        rows.row_pitch = row_pitch;
        rows.stream = stream;
        check(trefoil_batch_read_from(get(), &rows));
    }
    /// Submits the first rows, but the result stays on the device. The engine must be built with `device_results`.
    /// Throws for a fleet's batch.
    device_output submit_to_device(std::size_t rows) && {
        trefoil_device_output raw = 0;
        const trefoil_status status = trefoil_submit_to_device(get(), rows, &raw);
        if (status != TREFOIL_STATUS_INVALID_ARGUMENT && status != TREFOIL_STATUS_BUSY) used_up();
        check(status);
        return device_output(raw);
    }
    /// Submits the first rows. Never waits for the device, except after a fault in a fleet: see trefoil_fleet_build().
    ticket submit(std::size_t rows) && {
        trefoil_ticket raw = 0;
        const trefoil_status status = trefoil_submit(get(), rows, &raw);
        if (status != TREFOIL_STATUS_INVALID_ARGUMENT && status != TREFOIL_STATUS_BUSY) used_up();
        check(status);
        return ticket(raw);
    }

private:
    std::uint8_t *first_ = nullptr;
    std::size_t row_bytes_ = 0, row_pitch_ = 0, capacity_ = 0;
};

/// A model on a device behind a ring.
class engine : public handle {
public:
    explicit engine(const model &model, const engine_options &options = {}) : engine(build(model, options)) {}
    explicit engine(std::uint64_t raw)
        : handle(raw),
          input_(detail::ask<trefoil_tensor>(trefoil_engine_input, get())),
          output_(detail::ask<trefoil_tensor>(trefoil_engine_output, get())) {
        check(trefoil_engine_capacity(get(), &capacity_));
    }
    /// Builds an engine with exactly these sizes, instead of those in the options.
    engine(const model &model, const std::vector<sized> &sizes, engine_options options = {})
        : engine(model, with_sizes(sizes, options).options) {}
    batch acquire() const {
        trefoil_batch raw = 0;
        check(trefoil_acquire(get(), &raw));
        return batch(raw);
    }
    batch acquire_within(std::chrono::nanoseconds limit) const {
        trefoil_batch raw = 0;
        check(trefoil_acquire_within(get(), detail::nanoseconds(limit), &raw));
        return batch(raw);
    }
    /// A batch for rows of the dimensions in a size, at the smallest size of the engine that holds them. Waits up to
    /// `limit`; unlike acquire(), it does not use `acquire_limit_ns` of the options.
    batch acquire_for(const sized &wanted, std::chrono::nanoseconds limit = std::chrono::seconds(10)) const {
        trefoil_batch raw = 0;
        check(trefoil_acquire_for(get(), detail::raw_size(wanted).get(), detail::nanoseconds(limit), &raw));
        return batch(raw);
    }
    /// A batch, or nothing if no batch is free now.
    std::optional<batch> try_acquire() const {
        trefoil_batch raw = 0;
        const trefoil_status status = trefoil_try_acquire(get(), &raw);
        if (status == TREFOIL_STATUS_NOT_READY) return std::nullopt;
        check(status);
        return batch(raw);
    }
    /// Sets all states to zeros for the next batch, or for the next read or write of a state.
    void reset_states() const { check(trefoil_engine_reset_states(get())); }
    /// Copies all `count` elements of a state, after all batches and resets so far.
    template <class T>
    void read_state(const char *name, T *elements, std::size_t count) const {
        check(trefoil_engine_read_state(get(), name, dtype_of<T>, elements, count * sizeof(T)));
    }
    /// Writes a state for the batches that are submitted from now on.
    template <class T>
    void write_state(const char *name, const T *elements, std::size_t count) const {
        check(trefoil_engine_write_state(get(), name, dtype_of<T>, elements, count * sizeof(T)));
    }
    /// Closes the engine to new work and waits for the work in flight; with `abort` its results are discarded.
    void close(std::chrono::nanoseconds limit, bool abort = false) const {
        check(trefoil_engine_close(get(), abort, detail::nanoseconds(limit)));
    }
    const trefoil_tensor &input() const noexcept { return input_; }
    const trefoil_tensor &output() const noexcept { return output_; }
    /// The number of ports in an input row, and a port by its number or name.
    std::size_t input_ports() const { return number(trefoil_engine_input_ports); }
    port input_port(std::size_t index) const { return detail::describe(trefoil_engine_input_port, get(), index); }
    port input_port(const std::string &name) const { return input_port(find(trefoil_engine_find_input, name)); }
    /// The number of ports in an output row, and a port by its number or name.
    std::size_t output_ports() const { return number(trefoil_engine_output_ports); }
    port output_port(std::size_t index) const { return detail::describe(trefoil_engine_output_port, get(), index); }
    port output_port(const std::string &name) const { return output_port(find(trefoil_engine_find_output, name)); }
    std::size_t capacity() const noexcept { return capacity_; }
    std::vector<std::size_t> batch_sizes() const {
        std::size_t count = 0;
        check(trefoil_engine_batch_sizes(get(), nullptr, 0, &count));
        std::vector<std::size_t> sizes(count);
        check(trefoil_engine_batch_sizes(get(), sizes.data(), count, &count));
        return sizes;
    }
    /// The recorder's report as text, and the timeline as a file, for an engine built with `trace_batches`.
    std::string trace_report() const {
        std::string text(4096, '\0');
        std::size_t length = 0;
        for (;;) { // a later report may be longer
            check(trefoil_trace_report(get(), &text[0], text.size(), &length));
            const bool fits = length < text.size();
            text.resize(fits ? length : length + 1024);
            if (fits) return text;
        }
    }
    void trace_write(const char *path) const { check(trefoil_trace_write(get(), path)); }
    trefoil_health health() const { return detail::ask<trefoil_health>(trefoil_engine_health, get()); }
    trefoil::device device() const {
        trefoil_device raw = 0;
        check(trefoil_engine_device(get(), &raw));
        return trefoil::device(raw);
    }

private:
    static std::uint64_t build(const model &model, const engine_options &options) {
        trefoil_engine raw = 0;
        check(trefoil_engine_build(model.get(), &options, &raw));
        return raw;
    }
    template <class Function>
    std::size_t number(Function function) const {
        std::size_t count = 0;
        check(function(get(), &count));
        return count;
    }
    template <class Function>
    std::size_t find(Function function, const std::string &name) const {
        std::size_t index = 0;
        check(function(get(), name.c_str(), &index));
        return index;
    }
    /// Options, and the data that they point to.
    struct with_sizes {
        with_sizes(const std::vector<sized> &sizes, const engine_options &from) : options(from) {
            for (const sized &one : sizes) {
                all.emplace_back(one);
                pointers.push_back(all.back().get());
            }
            options.sizes = pointers.data(), options.size_count = pointers.size();
        }
        std::list<detail::raw_size> all;
        std::vector<const trefoil_size *> pointers;
        engine_options options;
    };

    trefoil_tensor input_, output_;
    std::size_t capacity_ = 0;
};

/// The same engine on several devices, used as one; with `rebuilds`, an engine whose device failed is built again, up
/// to so many times.
class fleet : public handle {
public:
    fleet(const model &model, const std::vector<device> &devices, const engine_options &options = {},
          std::size_t rebuilds = 0)
        : handle(build(model, devices, options, rebuilds)) {}
    batch acquire() const {
        trefoil_batch raw = 0;
        check(trefoil_fleet_acquire(get(), &raw));
        return batch(raw);
    }
    batch acquire_within(std::chrono::nanoseconds limit) const {
        trefoil_batch raw = 0;
        check(trefoil_fleet_acquire_within(get(), detail::nanoseconds(limit), &raw));
        return batch(raw);
    }
    /// A batch for rows of the dimensions in a size. Waits up to `limit`, as engine::acquire_for() does.
    batch acquire_for(const sized &wanted, std::chrono::nanoseconds limit = std::chrono::seconds(10)) const {
        trefoil_batch raw = 0;
        check(trefoil_fleet_acquire_for(get(), detail::raw_size(wanted).get(), detail::nanoseconds(limit), &raw));
        return batch(raw);
    }
    /// The number of devices.
    std::size_t devices() const {
        std::size_t count = 0;
        check(trefoil_fleet_devices(get(), &count));
        return count;
    }
    /// The engine that a device has now.
    trefoil::engine engine(std::size_t index) const {
        trefoil_engine raw = 0;
        check(trefoil_fleet_engine(get(), index, &raw));
        return trefoil::engine(raw);
    }
    /// What a device has done, and how it is.
    trefoil_fleet_stats stats(std::size_t index) const {
        trefoil_fleet_stats now = {};
        now.size = sizeof now;
        check(trefoil_fleet_get_stats(get(), index, &now));
        return now;
    }
    void close(std::chrono::nanoseconds limit, bool abort = false) const {
        check(trefoil_fleet_close(get(), abort, detail::nanoseconds(limit)));
    }

private:
    static std::uint64_t build(const model &model, const std::vector<device> &devices, const engine_options &options,
                               std::size_t rebuilds) {
        std::vector<trefoil_device> raws;
        for (const device &one : devices) raws.push_back(one.get());
        trefoil_fleet raw = 0;
        check(trefoil_fleet_build(model.get(), &options, raws.data(), raws.size(), rebuilds, &raw));
        return raw;
    }
};

/// A row of a batcher that is being written. If it is destroyed without submit(), its memory is free again.
class row : public handle {
public:
    row() noexcept = default;
    explicit row(std::uint64_t raw) noexcept : handle(raw) {}
    span<std::uint8_t> bytes() const {
        void *at = nullptr;
        std::size_t bytes = 0;
        check(trefoil_row_memory(get(), &at, &bytes));
        return {static_cast<std::uint8_t *>(at), bytes};
    }
    /// The elements of a port, by the port's number. Throws if the elements are not of type T.
    template <class T>
    span<T> port(std::size_t index) const {
        void *at = nullptr;
        std::size_t bytes = 0;
        check(trefoil_row_port(get(), index, dtype_of<T>, &at, &bytes));
        return {static_cast<T *>(at), bytes / sizeof(T)};
    }
    /// Copies the elements of a port; if there are fewer than the port has, the padding of model::padded() follows.
    template <class T>
    void write_port(std::size_t index, const T *elements, std::size_t count) const {
        check(trefoil_row_write_port(get(), index, dtype_of<T>, elements, count * sizeof(T)));
    }
    /// Describes a port, by its number.
    trefoil::port describe_port(std::size_t index) const {
        return detail::describe(trefoil_row_describe_port, get(), index);
    }
    ticket submit() && {
        trefoil_ticket raw = 0;
        const trefoil_status status = trefoil_row_submit(get(), &raw);
        if (status != TREFOIL_STATUS_BUSY) used_up();
        check(status);
        return ticket(raw);
    }
};

/// A batcher: it forms batches of single rows from many threads.
class batcher : public handle {
public:
    explicit batcher(const engine &engine, const batcher_options &options = {}) : handle(build(engine, options)) {}
    /// Copies one row, of `bytes` bytes, into page-locked memory and commits it. Waits for a free row as `when_full` of
    /// the options says.
    ticket submit(const void *row, std::size_t bytes, const row_options &options = {}) const {
        trefoil_ticket raw = 0;
        check(trefoil_batcher_submit(get(), &options, row, bytes, &raw));
        return ticket(raw);
    }
    /// Copies and commits many rows in one call, each of `bytes` bytes. One ticket and one output are for all of them.
    ticket submit_rows(const std::vector<const void *> &rows, std::size_t bytes, const row_options &options = {}) const {
        trefoil_ticket raw = 0;
        check(trefoil_batcher_submit_rows(get(), &options, rows.data(), rows.size(), bytes, &raw));
        return ticket(raw);
    }
    /// Lends a row to be written in place. Waits for a free row as submit() does.
    trefoil::row row(const row_options &options = {}) const {
        trefoil_row raw = 0;
        check(trefoil_batcher_row(get(), &options, &raw));
        return trefoil::row(raw);
    }
    /// Lends a row at the smallest size of the engine that holds the dimensions of a size.
    trefoil::row row_for(const sized &wanted, row_options options = {}) const {
        const detail::raw_size raw(wanted);
        options.at = raw.get();
        return row(options);
    }
    /// Closes the batcher to new rows and waits for the answers of committed ones; with `abort` queued rows are not
    /// computed.
    void close(std::chrono::nanoseconds limit, bool abort = false) const {
        check(trefoil_batcher_close(get(), abort, detail::nanoseconds(limit)));
    }
    trefoil_batcher_stats stats() const {
        return detail::ask<trefoil_batcher_stats>(trefoil_batcher_get_stats, get());
    }

private:
    static std::uint64_t build(const engine &engine, const batcher_options &options) {
        trefoil_batcher raw = 0;
        check(trefoil_batcher_build(engine.get(), &options, &raw));
        return raw;
    }
};

} // namespace trefoil

#endif // TREFOIL_HPP
