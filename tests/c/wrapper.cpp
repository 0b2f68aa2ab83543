// Every part of trefoil.hpp, used as it is meant and misused where it tells: wrapper MODEL NODE TIMELINE.json VALUES.onnx
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>

#include <trefoil.hpp>

using namespace std::chrono_literals;

static void require(bool holds, const char *what, int line) {
    if (holds) return;
    std::printf("line %d: %s\n", line, what);
    std::exit(1);
}
#define REQUIRE(condition) require(condition, #condition, __LINE__)

template <class F>
static void throws(trefoil_status status, F call, int line) {
    try {
        call();
    } catch (const trefoil::error &error) {
        require(error.status() == status && error.what()[0] != '\0', error.what(), line);
        return require(error.reaches() == TREFOIL_FAULT_CLASS_REQUEST, "a request", line);
    }
    require(false, "it throws", line);
}
#define THROWS(status, ...) throws(TREFOIL_STATUS_##status, [&] { __VA_ARGS__; }, __LINE__)

template <class T>
static void moves(T &from) {
    const std::uint64_t raw = from.get();
    T to = std::move(from);
    REQUIRE(to.get() == raw && !from);
    from = std::move(to);
    REQUIRE(from.get() == raw && !to);
    T &same = from;
    from = std::move(same);
    REQUIRE(from.get() == raw);
}

template <class F>
static void refuses(const std::string &message, F call, int line) {
    try {
        call();
    } catch (const trefoil::error &error) {
        require(error.status() == TREFOIL_STATUS_INVALID_ARGUMENT, error.what(), line);
        return require(std::string(error.what()).find(message) != std::string::npos, error.what(), line);
    }
    require(false, "it throws", line);
}
#define REFUSES(message, ...) refuses(message, [&] { __VA_ARGS__; }, __LINE__)

// Ports of several types, by name and by number.
static void ports(const std::string &path, const trefoil::device &device) {
    REFUSES("`n`", trefoil::model::at(path, {}));
    const trefoil::model model = trefoil::model::at(path, {{"n", 3}});
    REQUIRE(model.info().classes == 0 && model.info().height == 0);
    trefoil::engine_options options;
    options.device = device.get();
    options.batch = 2;
    const trefoil::engine engine(model, options);
    REQUIRE(engine.input_ports() == 2 && engine.output_ports() == 3);
    const trefoil::port numbers = engine.input_port("numbers"), shift = engine.input_port("shift");
    REQUIRE(numbers.index == 0 && numbers.elements == 3 && numbers.dtype == trefoil::dtype_of<float>);
    REQUIRE(std::strcmp(engine.input_port(1).name, "shift") == 0 && shift.offset == 16);
    REFUSES("`numbers`, `shift`", engine.input_port("sums"));
    REFUSES("port is 3", engine.output_port(3));

    trefoil::batch batch = engine.acquire();
    REFUSES("`numbers` of f32[3]: expected elements of bf16", batch.port<trefoil::bf16>(0, numbers.index));
    REFUSES("port is 2", batch.port<float>(0, 2));
    REFUSES("row 2: expected one below 2", batch.port<float>(2, 0));
    for (std::size_t row = 0; row < 2; row++) {
        const trefoil::span<float> to = batch.port<float>(row, numbers.index);
        for (std::size_t i = 0; i < to.size(); i++) to[i] = 0.5f * static_cast<float>(i + row);
        batch.port<std::int64_t>(row, shift.index)[0] = 4;
    }
    const auto holds = [&engine](const trefoil::output &output, std::size_t at, std::size_t row) {
        const trefoil::span<const float> sums = output.port<float>(at, engine.output_port("sums").index);
        const trefoil::span<const bool> large = output.port<bool>(at, engine.output_port("large").index);
        for (std::size_t i = 0; i < 3; i++) {
            REQUIRE(sums[i] == 0.5f * static_cast<float>(i + row) + 4 && large[i] == (i + row > 1));
            REQUIRE(output.values(at)[i] == sums[i]);
        }
        REQUIRE(output.port<std::int64_t>(at, engine.output_port("doubled").index)[0] == 8);
        REFUSES("`sums` of f32[3]: expected elements of i64", output.port<std::int64_t>(at, 0));
        REFUSES("row 5", output.port<float>(5, 0));
    };
    const trefoil::output output = std::move(batch).submit(2).wait();
    for (std::size_t row = 0; row < 2; row++) holds(output, row, row);

    const trefoil::batcher batcher(engine);
    trefoil::row single = batcher.row();
    REFUSES("`shift` of i64[1]: expected elements of u64", single.port<std::uint64_t>(1));
    REFUSES("port is 2", single.port<float>(2));
    const trefoil::span<float> to = single.port<float>(0);
    for (std::size_t i = 0; i < to.size(); i++) to[i] = 0.5f * static_cast<float>(i);
    single.port<std::int64_t>(1)[0] = 4;
    holds(std::move(single).submit().wait(), 0, 0);
}

// An engine of two sizes, and rows that are shorter than theirs.
static void sizes(const std::string &path, const trefoil::device &device) {
    const trefoil::model model = trefoil::model::at(path, {{"n", 3}}).padded("n", {{"numbers", 1.0}});
    trefoil::engine_options options;
    options.device = device.get();
    options.check = 1;
    const trefoil::engine engine(model, {{2, {{"n", 3}}}, {1, {{"n", 5}}}}, options);
    REQUIRE(engine.capacity() == 2 && engine.input_port("numbers").elements == 3);
    const trefoil::sized four{1, {{"n", 4}}};
    REFUSES("batch=2,n=3; batch=1,n=5", engine.acquire_for({1, {{"n", 6}}}));
    const float numbers[] = {0, 1, 2, 3};
    const std::int64_t shift = 4;
    const auto holds = [](const trefoil::output &output) {
        REQUIRE(output.describe_port(0).elements == 5);
        const trefoil::span<const float> sums = output.port<float>(0, 0);
        for (std::size_t i = 0; i < 5; i++) REQUIRE(sums[i] == (i < 4 ? static_cast<float>(i) : 1.0f) + 4);
    };
    trefoil::batch batch = engine.acquire_for(four);
    REQUIRE(batch.capacity() == 1 && batch.describe_port(0).elements == 5 && batch.row(0).size() == 40);
    batch.write_port(0, 0, numbers, 4);
    batch.write_port(0, 1, &shift, 1);
    REFUSES("elements of f32", batch.write_port(0, 1, numbers, 1));
    holds(std::move(batch).submit(1).wait());

    const trefoil::batcher batcher(engine);
    trefoil::row row = batcher.row_for(four);
    REQUIRE(row.describe_port(0).elements == 5);
    row.write_port(0, numbers, 4);
    row.write_port(1, &shift, 1);
    holds(std::move(row).submit().wait());
}

int main(int argc, char **argv) {
    if (argc < 5) return 64;
    trefoil::check_abi();
    THROWS(ABI_MISMATCH, trefoil::check(trefoil_check_abi(TREFOIL_ABI_MAJOR + 1, 0)));
    THROWS(INVALID_ARGUMENT, trefoil::device("gpu"));
    THROWS(IO, trefoil::model("no/such/model"));

    trefoil::device device = trefoil::device::cpu(2);
    trefoil::model model{std::string(argv[1])};
    REQUIRE(device.info().units == 2 && std::strcmp(trefoil::device("cpu").info().name, "CPU") == 0);
    REQUIRE(!model.label(9).empty() && model.label(9).size() == std::strlen(model.label(9).c_str()));
    THROWS(INVALID_ARGUMENT, model.label(model.info().classes));
    trefoil::engine_options options;
    options.device = device.get();
    options.batch = 2;
    options.staging = options.results = 2;
    options.trace_batches = 8;
    trefoil::engine engine(model, options);
    REQUIRE(engine.capacity() == 2 && engine.batch_sizes().back() == 2);
    REQUIRE(engine.device().info().units == 2);
    const std::size_t row_bytes = engine.input().row_bytes;

    { // a cut model: another engine on the same device
        trefoil::model cut = model.cut(argv[2]);
        moves(cut);
        trefoil::engine_options whole = options;
        whole.result = TREFOIL_RESULT_FEATURES;
        trefoil::engine features(cut, whole);
        REQUIRE(features.output().row_bytes != engine.output().row_bytes);
    }
    { // in a type that is asked for
        trefoil::engine_options halves = options;
        halves.precision = TREFOIL_PRECISION_F16;
        REQUIRE(trefoil::engine(model, halves).acquire().submit(1).wait().values(0).size() == model.info().classes);
        halves.precision = 99;
        THROWS(INVALID_ARGUMENT, trefoil::engine(model, halves));
    }
    { // a network of images at two sizes
        trefoil::engine_options few;
        few.device = device.get();
        const trefoil::sized usual{2, {{"height", 28}, {"width", 28}}}, other{1, {{"height", 20}, {"width", 36}}};
        REQUIRE(model.at(other).info().width == 36);
        REFUSES("`height`, `width`", model.at(trefoil::sized{1, {{"depth", 3}}}));
        const trefoil::engine both(model, {usual, other}, few);
        REQUIRE(both.acquire_for(other).row(0).size() == 20 * 36 && both.acquire_for(usual).row(0).size() == 28 * 28);
    }
    moves(device), moves(model), moves(engine);
    ports(argv[4], device);
    sizes(argv[4], device);

    // batches
    trefoil::batch batch = engine.acquire();
    moves(batch);
    for (std::size_t i = 0; i < batch.capacity(); i++)
        for (std::uint8_t &value : batch.row(i)) value = static_cast<std::uint8_t>(i * 100);
    try {
        batch.row(2);
        REQUIRE(!"a third row");
    } catch (const std::out_of_range &) {
    }
    THROWS(INVALID_ARGUMENT, std::move(batch).submit(3));
    REQUIRE(static_cast<bool>(batch)); // as it was
    {
        trefoil::batch other = engine.acquire_within(1s);
        REQUIRE(!engine.try_acquire() && engine.health().filling == 2);
        THROWS(TIMEOUT, engine.acquire_within(1ms));
    } // gives its rows back
    REQUIRE(engine.try_acquire().has_value());
    trefoil::ticket ticket = std::move(batch).submit(2);
    REQUIRE(!batch);
    THROWS(INVALID_HANDLE, std::move(batch).submit(1));
    moves(ticket);
    std::optional<trefoil::output> early;
    while (!early) early = ticket.wait_for(1ms);
    REQUIRE(!ticket && early->rows() == 2 && early->values(1).size() == model.info().classes);
    THROWS(INVALID_HANDLE, ticket.is_ready());
    const auto best = early->top_k<3>(1);
    REQUIRE(best.size() == 3 && best[0].value >= best[2].value);
    REQUIRE(early->values(1)[best[0].index] == best[0].value);
    moves(*early);
    early.reset();

    // replacing a ticket or an output releases the one before
    trefoil::output output;
    for (int i = 0; i < 5; i++) output = engine.acquire().submit(1).wait();
    REQUIRE(engine.health().unread == 1);

    // callbacks
    std::atomic<int> called{0};
    auto callback = [&](trefoil_status status, trefoil::output result) {
        if (status == TREFOIL_STATUS_OK && result.rows() == 1) called++;
    };
    engine.acquire().submit(1).on_ready(callback);
    const auto &same = callback; // also one that is const, in an object that the callback ends
    auto only = std::make_unique<trefoil::ticket>(engine.acquire().submit(1));
    const auto ends = [&only, &same](trefoil_status status, trefoil::output result) {
        only.reset();
        same(status, std::move(result));
    };
    std::move(*only).on_ready(ends);
    while (called < 2) std::this_thread::sleep_for(1ms);
    trefoil::ticket used = engine.acquire().submit(1), taken = std::move(used);
    THROWS(INVALID_HANDLE, std::move(used).on_ready(callback));
    {
        const trefoil::ticket other(taken.get()); // releases it, so that the call fails
    }
    THROWS(RELEASED, std::move(taken).on_ready(callback));
    REQUIRE(static_cast<bool>(taken)); // as it was
    REQUIRE(std::strcmp(trefoil::error().what(), "not ready") == 0);

    { // pairs are no row of numbers
        trefoil::engine_options pairs = options;
        pairs.result = TREFOIL_RESULT_TOP_K;
        pairs.top_k = 2;
        const trefoil::output two = trefoil::engine(model, pairs).acquire().submit(1).wait();
        REQUIRE(two.top_k<3>(0).size() == 2);
        try {
            two.values(0);
            REQUIRE(!"numbers of pairs");
        } catch (const std::logic_error &) {
        }
    }

    { // rows from the device, which on the CPU is the host, and results that stay there
        trefoil::engine_options stay = options;
        stay.device_results = 1;
        const trefoil::engine kept(model, stay);
        std::vector<std::uint8_t> rows(2 * row_bytes + 8);
        for (std::size_t i = 0; i < rows.size(); i++) rows[i] = static_cast<std::uint8_t>(i % 251);
        trefoil::batch from = kept.acquire();
        THROWS(INVALID_ARGUMENT, from.read_from(rows.data(), nullptr, 1));
        from.read_from(rows.data(), nullptr, row_bytes + 8);
        THROWS(INVALID_ARGUMENT, std::move(from).submit_to_device(3));
        REQUIRE(static_cast<bool>(from)); // as it was
        trefoil::device_output there = std::move(from).submit_to_device(2);
        REQUIRE(!from);
        moves(there);
        there.wait_on(nullptr);
        there.wait();
        REQUIRE(there.is_ready());
        const trefoil_device_output_info info = there.info();
        trefoil::batch host = kept.acquire();
        for (std::size_t i = 0; i < 2; i++)
            std::memcpy(host.row(i).data(), rows.data() + i * (row_bytes + 8), row_bytes);
        const trefoil::output same = std::move(host).submit(2).wait();
        for (std::size_t i = 0; i < 2; i++)
            REQUIRE(std::memcmp(same.values(i).data(), static_cast<char *>(info.address) + i * info.row_pitch,
                                info.row_bytes) == 0);
        there.read_on(nullptr);
        THROWS(NULL_POINTER, trefoil::device::in_context(nullptr));
        REQUIRE(!device.is_unused());
        trefoil::batch cannot = engine.acquire();
        THROWS(INVALID_ARGUMENT, std::move(cannot).submit_to_device(1));
    }

    // batchers
    trefoil::batcher batcher(engine);
    const std::vector<std::uint8_t> pixels(row_bytes, 100);
    trefoil::row_options urgent;
    urgent.high_priority = 1;
    trefoil::ticket copied = batcher.submit(pixels.data(), pixels.size(), urgent);
    THROWS(INVALID_ARGUMENT, batcher.submit(pixels.data(), 1));
    REQUIRE(std::move(copied).wait().top_k<1>(0)[0].index == best[0].index);
    trefoil::row row = batcher.row();
    moves(row);
    REQUIRE(row.bytes().size() == row_bytes);
    std::memcpy(row.bytes().data(), pixels.data(), row_bytes);
    trefoil::ticket in_place = std::move(row).submit();
    THROWS(INVALID_HANDLE, row.bytes());
    REQUIRE(std::move(in_place).wait().top_k<1>(0)[0].index == best[0].index);
    REQUIRE(batcher.stats().rows == 2);
    moves(batcher);
    batcher.close(10s, true);
    THROWS(CLOSED, batcher.row());

    // the same engine on two devices
    std::vector<trefoil::device> devices;
    for (int at = 0; at < 2; at++) devices.push_back(trefoil::device::cpu(1));
    trefoil::engine_options of_two;
    of_two.batch = 2;
    trefoil::fleet fleet(model, devices, of_two, 1);
    REQUIRE(fleet.devices() == 2 && fleet.engine(1).capacity() == 2);
    std::vector<trefoil::ticket> tickets;
    for (int number = 0; number < 4; number++) {
        trefoil::batch batch = number % 2 == 0 ? fleet.acquire() : fleet.acquire_within(10s);
        std::memcpy(batch.row(0).data(), pixels.data(), row_bytes);
        tickets.push_back(std::move(batch).submit(1));
    }
    for (trefoil::ticket &one : tickets)
        REQUIRE(std::move(one).wait().top_k<1>(0)[0].index == best[0].index);
    REQUIRE(fleet.stats(0).batches + fleet.stats(1).batches == 4 && fleet.stats(0).rebuilt == 0);
    THROWS(INVALID_ARGUMENT, fleet.stats(2));
    THROWS(INVALID_ARGUMENT, trefoil::fleet(model, {}, of_two));
    fleet.close(10s);
    THROWS(CLOSED, fleet.acquire());

    // what it did
    REQUIRE(engine.trace_report().size() > 40);
    engine.trace_write(argv[3]);
    REQUIRE(std::ifstream(argv[3]).get() == '{' || std::ifstream(argv[3]).get() == '[');
    engine.trace_write((std::string(argv[3]) + ".html").c_str());
    REQUIRE(std::ifstream(std::string(argv[3]) + ".html").get() == '<');
    device.health();
    engine.close(10s);
    THROWS(CLOSED, engine.acquire());
    REQUIRE(engine.health().closed == 1);
    std::puts("the wrapper holds");
    return 0;
}
