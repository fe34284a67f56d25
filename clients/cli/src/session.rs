//! The connection of one command, and how its replies are to look.

use std::time::Duration;

use vipd_client::tonic::Request;
use vipd_client::{Client, Target, Tls};

use crate::cli::Connection;
use crate::failure::Failure;
use crate::output::Format;

/// What every command works with.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) format: Format,
    timeout: Duration,
}

impl Session {
    /// Connects to the vipd that the command line names.
    pub(crate) async fn open(connection: &Connection, format: Format) -> Result<Self, Failure> {
        let client = Client::connect(&target(connection)?).await?;
        Ok(Self { client, format, timeout: connection.timeout })
    }

    /// A request that is given up after the time-out.
    pub(crate) fn ask<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }
}

fn target(connection: &Connection) -> Result<Target, Failure> {
    let Some(server) = &connection.server else {
        return Ok(connection.socket.clone().map_or_else(Target::default, Target::Unix));
    };
    if server.starts_with("http://") {
        return Ok(server.parse()?);
    }
    let address = server.strip_prefix("https://").unwrap_or(server).to_owned();
    match (&connection.tls_cert, &connection.tls_key, &connection.tls_ca) {
        (Some(certificate), Some(key), Some(ca)) => {
            Ok(Target::Tls { address, tls: Tls::from_files(certificate, key, ca)? })
        }
        _ => Err(Failure::Usage(format!(
            "--server {server} needs --tls-cert, --tls-key and --tls-ca: vipd asks every caller from outside who it is"
        ))),
    }
}
