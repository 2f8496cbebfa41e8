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
export const PlayIcon = () => (
  <Icon>
    <path d="M6 4l10 6-10 6z" fill="currentcolor" />
  </Icon>
);
export const PauseIcon = () => (
  <Icon>
    <path d="M7 4v12M13 4v12" />
  </Icon>
);
export const CastIcon = () => (
  <Icon>
    <circle cx="10" cy="10" r="1.6" fill="currentcolor" />
    <path d="M6.2 13.8a5.4 5.4 0 0 1 0-7.6M13.8 6.2a5.4 5.4 0 0 1 0 7.6M3.5 16.5a9.2 9.2 0 0 1 0-13M16.5 3.5a9.2 9.2 0 0 1 0 13" />
  </Icon>
);
export const MailIcon = () => (
  <Icon>
    <path d="M3 5h14v10H3zM3 5.5l7 5.5 7-5.5" />
  </Icon>
);
export const FeedIcon = () => (
  <Icon>
    <path d="M3 10h3l2.5-6 3.5 12 2.5-6H17" />
  </Icon>
);
export const YouIcon = () => (
  <Icon>
    <circle cx="10" cy="6.5" r="3.2" />
    <path d="M3.5 17a6.5 6.5 0 0 1 13 0" />
  </Icon>
);
export const NetIcon = () => (
  <Icon>
    <circle cx="10" cy="4.5" r="2" />
    <circle cx="4.5" cy="15" r="2" />
    <circle cx="15.5" cy="15" r="2" />
    <path d="M9 6.3L5.6 13.2M11 6.3l3.4 6.9M6.5 15h7" />
  </Icon>
);
export const WhyIcon = () => (
  <Icon>
    <circle cx="10" cy="10" r="7.2" />
    <path d="M7.8 8a2.2 2.2 0 1 1 3.3 1.9c-.8.5-1.1.9-1.1 1.8M10 14v.2" />
  </Icon>
);
export const MirrorIcon = () => (
  <Icon>
    <path d="M10 2.5v15M7.5 5L3 14.5h4.5zM12.5 5L17 14.5h-4.5z" />
  </Icon>
);
export const WhatIfIcon = () => (
  <Icon>
    <path d="M10 17v-6.5M10 10.5L5 4M10 10.5L15 4M4.5 7.5V3.5h4M15.5 7.5v-4h-4" />
  </Icon>
);
