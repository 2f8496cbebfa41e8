// Icons, drawn here: a font or a sprite would be one more file to load.

import type { ComponentChildren } from "preact";

function Icon({ children }: { children: ComponentChildren }) {
  return (
    <svg class="icon" viewBox="0 0 20 20" aria-hidden="true">
      {children}
    </svg>
  );
}

export const PlusIcon = () => (
  <Icon>
    <path d="M10 4v12M4 10h12" />
  </Icon>
);
export const MinusIcon = () => (
  <Icon>
    <path d="M4 10h12" />
  </Icon>
);
export const FitIcon = () => (
  <Icon>
    <path d="M3 7V3h4M13 3h4v4M17 13v4h-4M7 17H3v-4" />
  </Icon>
);
export const CloseIcon = () => (
  <Icon>
    <path d="M5 5l10 10M15 5L5 15" />
  </Icon>
);
export const SunIcon = () => (
  <Icon>
    <circle cx="10" cy="10" r="3.4" />
    <path d="M10 2v2M10 16v2M2 10h2M16 10h2M4.3 4.3l1.4 1.4M14.3 14.3l1.4 1.4M15.7 4.3l-1.4 1.4M5.7 14.3l-1.4 1.4" />
  </Icon>
);
export const MoonIcon = () => (
  <Icon>
    <path d="M16.5 12.2A7 7 0 1 1 7.8 3.5a5.6 5.6 0 0 0 8.7 8.7z" />
  </Icon>
);
export const LeaveIcon = () => (
  <Icon>
    <path d="M8 3H4v14h4M9 10h8M14 7l3 3-3 3" />
  </Icon>
);
export const TakeIcon = () => (
  <Icon>
    <path d="M6 7l-4 3 4 3M14 7l4 3-4 3M11.5 4l-3 12" />
  </Icon>
);
export const SearchIcon = () => (
  <Icon>
    <circle cx="9" cy="9" r="5" />
    <path d="M13 13l4 4" />
  </Icon>
);
export const FollowIcon = () => (
  <Icon>
    <circle cx="10" cy="10" r="5" />
    <path d="M10 2v4M10 14v4M2 10h4M14 10h4" />
  </Icon>
);
export const ListIcon = () => (
  <Icon>
    <path d="M3 5h14M3 10h14M3 15h14" />
  </Icon>
);
export const MapIcon = () => (
  <Icon>
    <path d="M3 5l4.5-2 5 2L17 3v12l-4.5 2-5-2L3 17zM7.5 3v12M12.5 5v12" />
  </Icon>
);
