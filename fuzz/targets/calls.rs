#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (_, run) = trefoil_fuzz::all::TARGETS.iter().find(|(name, _)| *name == "calls").expect("a target");
    run(bytes);
});
