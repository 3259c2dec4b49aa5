"""What an administrator needs: diagnosis and the service."""
