//! Eight signatures at a time, one in each lane of a 512-bit register, for processors that multiply integers there
//! (AVX-512 IFMA: Intel since Ice Lake, AMD since Zen 4). By the crate `ed25519-simd`, which is only there if the program is
//! compiled for such a processor.

use ed25519_simd::{DalekVerifier, VerifyInput};

use super::Claim;

/// Lanes: eight signatures take as long as one.
const LANES: usize = 8;
/// From so many on, lanes that stay empty cost less than going one by one: 41 µs for eight, 17 for one.
const WORTH_IT: usize = 3;

/// The verifier of the crate: tables of the base point, and room to work in.
#[derive(Debug, Default)]
pub(super) struct Lanes(DalekVerifier);

impl Lanes {
    /// How many of the claims, from the first on, are checked sooner in lanes than one by one.
    pub(super) fn worth(claims: usize) -> usize {
        let rest = claims % LANES;
        if rest < WORTH_IT { claims - rest } else { claims }
    }

    /// Which of the claims hold, in their order.
    pub(super) fn verify(&mut self, claims: &[Claim<'_>], verdicts: &mut [bool]) {
        let mut inputs = Vec::with_capacity(claims.len());
        let mut places = Vec::with_capacity(claims.len());
        for (place, claim) in claims.iter().enumerate() {
            // What has not the length of a signature is none.
            if let Ok(signature) = claim.signature.try_into() {
                inputs.push(VerifyInput { public_key: *claim.key.as_bytes(), signature, message: claim.input });
                places.push(place);
            }
        }
        let mut held = vec![false; inputs.len()];
        self.0.verify_batch(&inputs, &mut held);
        for (place, holds) in places.into_iter().zip(held) {
            verdicts[place] = holds;
        }
    }
}
