//! Whether the processor has what the program was compiled for (`.cargo/config.toml`: for the one of the machine that compiles
//! it). One that has not ends a program at any instruction, without a word.
//!
//! Owns the look at it, before anything else of the program runs: a compiler uses what it was told of everywhere, in Rust's own
//! start too. So this does as little as it can, and nothing that needs wide registers.

use raw_cpuid::{CpuId, ExtendedFeatures, FeatureInfo};

/// Ends the program with exit code 1 and a word if the processor lacks something.
pub fn check() {
    if let Some(name) = lacking() {
        let problem = ["error: this program was compiled for another processor: the one here lacks ", name, HELP];
        for part in problem {
            let _ = rustix::io::write(rustix::stdio::stderr(), part.as_bytes());
        }
        std::process::exit(1);
    }
}

const HELP: &str =
    ". Compile it on this machine, or for many with RUSTFLAGS='-C target-cpu=x86-64-v2' (docs/operations.md)\n";

/// The first of what compilers use by themselves that the program was compiled for and this processor lacks.
fn lacking() -> Option<&'static str> {
    let cpu = CpuId::new();
    let (basic, extended) = (cpu.get_feature_info(), cpu.get_extended_feature_info());
    let basic = |has: fn(&FeatureInfo) -> bool| basic.as_ref().is_some_and(has);
    let extended = |has: fn(&ExtendedFeatures) -> bool| extended.as_ref().is_some_and(has);
    macro_rules! first_lacking {
        ($($name:literal: $has:expr,)*) => {
            $(if cfg!(target_feature = $name) && !$has { return Some($name); })*
        };
    }
    first_lacking! {
        "sse4.2": basic(FeatureInfo::has_sse42),
        "popcnt": basic(FeatureInfo::has_popcnt),
        "movbe": basic(FeatureInfo::has_movbe),
        "fma": basic(FeatureInfo::has_fma),
        "avx": basic(FeatureInfo::has_avx),
        "bmi1": extended(ExtendedFeatures::has_bmi1),
        "bmi2": extended(ExtendedFeatures::has_bmi2),
        "avx2": extended(ExtendedFeatures::has_avx2),
        "avx512f": extended(ExtendedFeatures::has_avx512f),
        "avx512bw": extended(ExtendedFeatures::has_avx512bw),
        "avx512cd": extended(ExtendedFeatures::has_avx512cd),
        "avx512dq": extended(ExtendedFeatures::has_avx512dq),
        "avx512vl": extended(ExtendedFeatures::has_avx512vl),
        "avx512ifma": extended(ExtendedFeatures::has_avx512_ifma),
        "avx512vbmi": extended(ExtendedFeatures::has_avx512vbmi),
        "avx512vbmi2": extended(ExtendedFeatures::has_avx512vbmi2),
        "avx512bitalg": extended(ExtendedFeatures::has_avx512bitalg),
        "avx512vpopcntdq": extended(ExtendedFeatures::has_avx512vpopcntdq),
        "gfni": extended(ExtendedFeatures::has_gfni),
    }
    None
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_processor_that_runs_the_program_lacks_nothing() {
        assert_eq!(super::lacking(), None);
    }
}
