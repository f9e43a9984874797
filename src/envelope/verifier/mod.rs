//! Verification of many signatures by few keys.
//!
//! The answer is that of strict verification one by one, for any bytes. Strict verification (`ed25519_dalek`'s
//! `verify_strict`) takes a signature (R, s) of a message M under a key A if
//!
//! - s is canonical, that is less than the order of the base point B,
//! - R and A are points, and not of small order,
//! - the encoding of sB - kA, with k = SHA-512(R, A, M) modulo that order, is R byte for byte.
//!
//! Here the same point sB - kA is computed for each signature; only how is different: in lanes of wide registers, where the
//! processor has them ([`lanes`]), or from multiples of B and of A that were worked out beforehand ([`multiples`]). All of
//! it is arithmetic in the whole group, so that nothing is assumed of A or R, which may have a component of small order; k
//! is reduced before it is multiplied, as there. The batch shares one thing, the inversion that encoding needs. So a bad
//! signature in a batch is found alone, and no other is any worse for it.
//!
//! The usual batch equation, a random linear combination that must come to zero, is no faster here, and its answer is
//! another one: an R with a component of small order passes it with a probability of up to one half.

#[cfg(all(
    target_arch = "x86_64",
    target_feature = "avx512f",
    target_feature = "avx512bw",
    target_feature = "avx512dq",
    target_feature = "avx512ifma"
))]
mod lanes;
mod multiples;

use lanes::Lanes;
use multiples::Known;

use super::keys::PublicKey;

/// For processors without: everything goes one by one.
#[cfg(not(all(
    target_arch = "x86_64",
    target_feature = "avx512f",
    target_feature = "avx512bw",
    target_feature = "avx512dq",
    target_feature = "avx512ifma"
)))]
mod lanes {
    use super::Claim;

    #[derive(Debug, Default)]
    pub(super) struct Lanes;

    impl Lanes {
        pub(super) fn worth(_claims: usize) -> usize {
            0
        }

        pub(super) fn verify(&mut self, _claims: &[Claim<'_>], _verdicts: &mut [bool]) {}
    }
}

/// A signature to be checked.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// Whose it should be.
    pub key: &'a PublicKey,
    /// What should be signed.
    pub input: &'a [u8],
    /// The 64 bytes.
    pub signature: &'a [u8],
}

/// Checks signatures, and remembers what makes that faster for the keys that come often.
#[derive(Debug, Default)]
pub struct Verifier {
    lanes: Lanes,
    known: Known,
}

impl Verifier {
    /// Which of the claims hold, in their order.
    pub fn verify(&mut self, claims: &[Claim<'_>]) -> Vec<bool> {
        let mut verdicts = vec![false; claims.len()];
        let (in_lanes, one_by_one) = claims.split_at(Lanes::worth(claims.len()));
        let (of_lanes, others) = verdicts.split_at_mut(in_lanes.len());
        self.lanes.verify(in_lanes, of_lanes);
        self.known.verify(one_by_one, others);
        verdicts
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::digest::{self, SHA512};
    use curve25519_dalek::{EdwardsPoint, Scalar, constants::EIGHT_TORSION};
    use proptest::prelude::*;

    use super::{multiples::tests::scalar, *};
    use crate::envelope::keys::PrivateKey;

    /// The answer, one by one from multiples and in lanes, which must be the strict one.
    fn check(key: &PublicKey, input: &[u8], signature: &[u8]) -> bool {
        let strict = key.verifies(input, signature);
        let claim = Claim { key, input, signature };
        let mut one_by_one = [false];
        Known::of(key).verify(&[claim], &mut one_by_one);
        assert_eq!(one_by_one, [strict], "{key:?} {}", hex::encode(signature));
        for many in [3, 8, 9, 17] {
            let verdicts = Verifier::default().verify(&vec![claim; many]);
            assert_eq!(verdicts, vec![strict; many], "{key:?} {}", hex::encode(signature));
        }
        strict
    }

    /// Signs as one who has a private key and does not keep to the rules: with components of small order in A and R.
    fn sign_with_torsion(seed: u64, message: &[u8], of_key: EdwardsPoint, of_r: EdwardsPoint) -> (PublicKey, [u8; 64]) {
        let (a, r) = (scalar(seed), scalar(!seed));
        let key = EdwardsPoint::mul_base(&a) + of_key;
        let key = PublicKey::parse(key.compress().as_bytes()).unwrap();
        let r_bytes = (EdwardsPoint::mul_base(&r) + of_r).compress().to_bytes();
        let hash = digest::digest(&SHA512, &[&r_bytes, key.as_bytes(), message].concat());
        let k = Scalar::from_bytes_mod_order_wide(hash.as_ref().try_into().unwrap());
        let s = r + k * a;
        (key, [r_bytes, s.to_bytes()].concat().try_into().unwrap())
    }

    #[test]
    fn components_of_small_order_are_answered_strictly() {
        let mut taken = [0; 2];
        for of_key in EIGHT_TORSION {
            for of_r in EIGHT_TORSION {
                for seed in 0..4 {
                    let (key, signature) = sign_with_torsion(seed, b"message", of_key, of_r);
                    taken[usize::from(check(&key, b"message", &signature))] += 1;
                }
            }
        }
        assert!(taken[0] > 128 && taken[1] > 16, "refused and taken: {taken:?}");
    }

    #[test]
    fn r_of_small_order_is_refused() {
        for of_r in EIGHT_TORSION {
            for seed in 0..8 {
                // s = ka, so that sB - kA is the torsion component of kA alone.
                let (a, message) = (scalar(seed), seed.to_le_bytes());
                for of_key in EIGHT_TORSION {
                    let key = PublicKey::parse((EdwardsPoint::mul_base(&a) + of_key).compress().as_bytes()).unwrap();
                    let r = of_r.compress().to_bytes();
                    let hash = digest::digest(&SHA512, &[&r, &key.as_bytes()[..], &message].concat());
                    let k = Scalar::from_bytes_mod_order_wide(hash.as_ref().try_into().unwrap());
                    assert!(!check(&key, &message, &[r, (k * a).to_bytes()].concat()));
                }
            }
        }
    }

    #[test]
    fn encodings_that_are_not_canonical_are_refused() {
        let key = PrivateKey::from_seed(&[1; 32]);
        let signature = key.sign(b"message");
        // s plus the order of the base point, which is the same number to a careless reader.
        let order = hex::decode("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010").unwrap();
        let mut malleated = signature;
        let mut carry = 0;
        for (byte, more) in malleated[32..].iter_mut().zip(order) {
            let sum = u16::from(*byte) + u16::from(more) + carry;
            (*byte, carry) = (sum as u8, sum >> 8);
        }
        assert!(!check(&key.public(), b"message", &malleated));
        // y of R from p upwards: 2^255 - 19 + 0 to 18, with either sign.
        for more in 0..19_u8 {
            for sign in [0x7f, 0xff] {
                let mut r = [0xff; 32];
                (r[0], r[31]) = (0xed + more, sign);
                assert!(!check(&key.public(), b"message", &[&r[..], &signature[32..]].concat()));
            }
        }
        for length in [0, 32, 63, 65, 96] {
            assert!(!check(&key.public(), b"message", &signature.repeat(2)[..length]));
        }
        assert!(check(&key.public(), b"message", &signature));
    }

    proptest! {
        /// Whatever is done to signatures in a batch, each is answered as strict verification alone answers it.
        #[test]
        fn a_batch_answers_as_strict_verification_one_by_one(
            signers in proptest::collection::vec((0_u8..4, 0_usize..8, any::<u8>(), any::<u16>()), 1..40),
        ) {
            let mut verifier = Verifier::default();
            for _ in 0..3 {
                let mut items = Vec::new();
                for (number, (signer, torsion, change, place)) in signers.iter().enumerate() {
                    let input = vec![number as u8; usize::from(*place) % 200];
                    let (key, mut signature) = match torsion % 2 {
                        0 => {
                            let key = PrivateKey::from_seed(&[*signer; 32]);
                            (key.public(), key.sign(&input))
                        }
                        _ => sign_with_torsion((*signer).into(), &input, EIGHT_TORSION[*torsion], EIGHT_TORSION[torsion / 2]),
                    };
                    if change % 3 == 0 {
                        signature[usize::from(*place) % 64] ^= change / 3;
                    }
                    items.push((key, input, signature));
                }
                let claim = |(key, input, signature): &'_ (PublicKey, Vec<u8>, [u8; 64])| key.verifies(input, signature);
                let strict: Vec<bool> = items.iter().map(claim).collect();
                let claims: Vec<_> =
                    items.iter().map(|(key, input, signature)| Claim { key, input, signature }).collect();
                prop_assert_eq!(verifier.verify(&claims), strict);
            }
        }
    }
}
