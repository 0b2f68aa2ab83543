#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trefoil_fuzz::all::calls::run(bytes);
});
