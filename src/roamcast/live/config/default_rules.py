"""What do others see of a context whose publisher set no rules? What the settings say."""

from roamcast.identity.rulebook import PUBLIC
from roamcast.identity.rules import Rule
from roamcast.live.config.settings import Settings


def default_rules(settings: Settings) -> tuple[Rule, ...]:
    """Give the rules of contexts whose publisher set none."""
    privacy = settings.privacy
    if privacy.default_precision == "exact" and privacy.default_viewers == ("*",):
        return PUBLIC
    return (Rule(viewers=privacy.default_viewers, precision=privacy.default_precision, past=True),)
