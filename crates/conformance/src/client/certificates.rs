//! The certificates of a run: the broker's certificate with its CA, and an unrelated CA.

use std::{fs, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use tonic::transport::Identity;

use super::ClientRunError;

/// Writes `ca.pem` and `other-ca.pem` to the folder. Returns the broker's identity, signed by the first CA.
pub(super) fn make(folder: &Path) -> Result<Identity, ClientRunError> {
    let ca = authority(&folder.join("ca.pem"))?;
    authority(&folder.join("other-ca.pem"))?;
    let key = KeyPair::generate()?;
    let mut parameters = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    parameters.distinguished_name.push(DnType::CommonName, "baton conformance");
    parameters.use_authority_key_identifier_extension = true;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = parameters.signed_by(&key, &ca)?;
    Ok(Identity::from_pem(certificate.pem(), key.serialize_pem()))
}

fn authority(path: &Path) -> Result<Issuer<'static, KeyPair>, ClientRunError> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, "baton conformance CA");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate()?;
    fs::write(path, parameters.self_signed(&key)?.pem())?;
    Ok(Issuer::new(parameters, key))
}
