//! Whether the processor has all that the program was compiled for (`.cargo/config.toml`: for the one of the machine that
//! compiles it). One that has not ends a program at any instruction, without a word.

/// What compilers use of a processor by themselves, and whether this one has it.
#[cfg(target_arch = "x86_64")]
macro_rules! features {
    ($($name:literal: $has:expr,)*) => {
        [$(($name, cfg!(target_feature = $name), $has)),*]
    };
}

/// What the program was compiled for and this processor lacks.
#[cfg(target_arch = "x86_64")]
pub(super) fn lacking() -> Vec<&'static str> {
    let cpu = raw_cpuid::CpuId::new();
    let basic = cpu.get_feature_info();
    let extended = cpu.get_extended_feature_info();
    let more = cpu.get_extended_processor_and_feature_identifiers();
    let basic = |has: fn(&raw_cpuid::FeatureInfo) -> bool| basic.as_ref().is_some_and(has);
    let extended = |has: fn(&raw_cpuid::ExtendedFeatures) -> bool| extended.as_ref().is_some_and(has);
    let features = features! {
        "sse4.2": basic(|cpu| cpu.has_sse42()),
        "popcnt": basic(|cpu| cpu.has_popcnt()),
        "movbe": basic(|cpu| cpu.has_movbe()),
        "fma": basic(|cpu| cpu.has_fma()),
        "avx": basic(|cpu| cpu.has_avx()),
        "lzcnt": more.is_some_and(|cpu| cpu.has_lzcnt()),
        "bmi1": extended(|cpu| cpu.has_bmi1()),
        "bmi2": extended(|cpu| cpu.has_bmi2()),
        "avx2": extended(|cpu| cpu.has_avx2()),
        "avx512f": extended(|cpu| cpu.has_avx512f()),
        "avx512bw": extended(|cpu| cpu.has_avx512bw()),
        "avx512cd": extended(|cpu| cpu.has_avx512cd()),
        "avx512dq": extended(|cpu| cpu.has_avx512dq()),
        "avx512vl": extended(|cpu| cpu.has_avx512vl()),
        "avx512ifma": extended(|cpu| cpu.has_avx512_ifma()),
        "avx512vbmi": extended(|cpu| cpu.has_avx512vbmi()),
        "avx512vbmi2": extended(|cpu| cpu.has_avx512vbmi2()),
        "avx512bitalg": extended(|cpu| cpu.has_avx512bitalg()),
        "avx512vpopcntdq": extended(|cpu| cpu.has_avx512vpopcntdq()),
        "gfni": extended(|cpu| cpu.has_gfni()),
    };
    let lacks = features.into_iter().filter(|(_, is_needed, has)| *is_needed && !has);
    lacks.map(|(name, _, _)| name).collect()
}

/// Of other processors it is not looked into.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn lacking() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_processor_that_runs_the_program_lacks_nothing() {
        assert_eq!(super::lacking(), [""; 0]);
    }
}
