//! The port of the gateway in the broker's process. The gateway itself is a client of the broker, which the program starts.

use tokio::net::TcpListener;

use super::ServerError;
use crate::config::GatewaySettings;

/// Binds the port, where a gateway is enabled.
pub(super) async fn bind(settings: &GatewaySettings) -> Result<Option<TcpListener>, ServerError> {
    if !settings.enabled {
        return Ok(None);
    }
    let refused = |problem| ServerError::GatewayListen { address: settings.listen, problem };
    TcpListener::bind(settings.listen).await.map(Some).map_err(refused)
}
