"""What the project deploys."""

REGION = "eu-central"
