"""What an administrator needs: diagnosis, the service, backups."""
